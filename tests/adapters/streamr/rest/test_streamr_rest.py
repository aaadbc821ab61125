"""The REST interface answers genuine clients as they expect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.streamr.rest.core_api import CHANNELS_PER_SLICE, CoreApi, RestCaller
from gateway.access.authorization import ApiKey, digest
from tests.adapters.streamr.rest.conftest import Caller


@pytest.fixture
def guarded(make_broker: Callable[..., Any], alice: Any, bob: Any) -> Any:
    return make_broker(
        grants={
            f"streamr:{alice.address}": ("subscribe:s", "publish:s"),
            f"streamr:{bob.address}": ("subscribe:s",),
        },
        keys=(ApiKey("machine", digest("trellis_machine")),),
    )


def log_in(call: Caller, publisher: Any) -> httpx.Response:
    challenge = call("POST", f"/login/challenge/{publisher.address}").json()
    assert set(challenge) == {"id", "challenge", "expires"}
    signature = publisher.sign(challenge["challenge"])
    body = {"challenge": challenge, "signature": signature, "address": publisher.address}
    return call("POST", "/login/response", json=body)


def test_login_gives_a_token_that_names_its_user(call: Caller, alice: Any) -> None:
    answer = log_in(call, alice).json()
    assert answer["expires"].endswith("Z")
    user = call("GET", "/users/me", answer["token"]).json()
    assert user["username"].lower() == alice.address
    assert call("POST", "/logout", answer["token"]).status_code == 204
    assert call("GET", "/users/me", answer["token"]).status_code == 401
    assert call("GET", "/users/me").json() == {"code": "NOT_AUTHENTICATED", "message": "log in first"}


def test_a_token_works_on_the_websocket(call: Caller, broker: Any, alice: Any) -> None:
    session = broker.open()
    broker.ask(session, [2, 9, "r", "s", 0, log_in(call, alice).json()["token"]])
    assert session.who.identity == alice.address


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"nope", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"challenge": "x", "signature": "0x", "address": "0x"}', 400),
        (b'{"challenge": {"id": "x", "challenge": "y"}, "signature": "0x", "address": "0x"}', 401),
        (b'{"challenge": {"id": "\\ud800", "challenge": "\\ud800"}, "signature": "0x", "address": "\\ud800"}', 401),
        (b" " * 70_000, 413),
    ],
)
def test_an_invalid_challenge_response_is_refused(call: Caller, body: bytes, status: int) -> None:
    response = call("POST", "/login/response", content=body)
    assert response.status_code == status
    assert set(response.json()) == {"code", "message"}


def test_a_challenge_for_an_invalid_address_is_refused(call: Caller) -> None:
    assert call("POST", "/login/challenge/bob").status_code == 400


@pytest.mark.parametrize("path", ["/streams/my%2Fstream", "/streams/my/stream"])
def test_ids_come_encoded_or_with_bare_slashes(call: Caller, alice: Any, path: str) -> None:
    stream = call("GET", path).json()
    assert stream["id"] == stream["name"] == "my/stream"
    assert (stream["partitions"], stream["requireSignedData"], stream["config"]) == (1, False, {"fields": []})
    assert call("GET", f"{path}/validation").json().keys() == {
        "id",
        "partitions",
        "requireSignedData",
        "requireEncryptedData",
    }
    assert call("GET", f"{path}/publisher/{alice.address}").json() == {}
    assert call("GET", f"{path}/subscriber/{alice.address}").json() == {}
    assert call("GET", f"{path}/publishers").json() == {"addresses": []}
    operations = {entry["operation"].removeprefix("stream_") for entry in call("GET", f"{path}/permissions/me").json()}
    assert operations == {"get", "subscribe", "publish"}, "without keys nobody administers"


@pytest.mark.parametrize("name", ["a%2Fpublishers", "%F0%9F%8C%B3", "50%25", "a%3Fb", "a%23b"])
def test_any_name_can_be_asked_for(call: Caller, name: str) -> None:
    assert call("GET", f"/streams/{name}").json()["id"] == httpx.URL(f"http://h/{name}").path[1:]


@pytest.mark.parametrize("name", ["tab%09", "x" * 256, "a%2F@b", "SYSTEM%2Fkeyexchange%2F0x" + "a" * 40])
def test_an_invalid_stream_name_answers_404(call: Caller, name: str) -> None:
    response = call("GET", f"/streams/{name}")
    assert response.status_code == 404
    assert response.json()["code"] == "NOT_FOUND"


def test_inboxes_are_answered_for(call: Caller, alice: Any) -> None:
    assert call("GET", "/streams/s%2F%4012").json()["partitions"] == 1
    assert call("GET", f"/streams/s%2F%40{alice.address}/publisher/{alice.address}").json() == {}


def test_reading_a_stream_creates_nothing_and_posting_creates_it(call: Caller, broker: Any) -> None:
    call("GET", "/streams/new")
    assert call("GET", "/streams?name=new&public=false").json() == []
    assert broker.core.channels.registered() == []
    for body in ('{"name":"new"}', '{"id":"new","partitions":7}'):
        assert call("POST", "/streams", content=body, headers={"Content-Type": "text/plain"}).json()["id"] == "new"
    assert [stream["id"] for stream in call("GET", "/streams").json()] == ["new"]
    assert [stream["id"] for stream in call("GET", "/streams?name=new").json()] == ["new"]
    for body in ("{}", '{"id":7}', '{"id":"s/@1"}'):
        assert call("POST", "/streams", content=body).status_code == 400
    assert call("POST", "/streams", content='{"id":"\\ud800"}').status_code == 404


def test_only_configured_streams_exist_if_creation_is_off(make_broker: Callable[..., Any], make_caller: Any) -> None:
    broker = make_broker(create=False)
    broker.core.channels.configure("made")
    call = make_caller(broker)
    assert call("GET", "/streams/made").status_code == 200
    assert call("GET", "/streams/nope").json() == {"code": "NOT_FOUND", "message": "Stream not found: nope"}
    assert call("POST", "/streams", content='{"id":"nope"}').status_code == 404


@pytest.mark.parametrize("path", ["/streams/a/b", "/streams/a%2Fb", "/streams/a/b/publishers", "/streams"])
def test_head_is_get_without_the_answer(call: Caller, path: str) -> None:
    answer, whole = call("HEAD", path), call("GET", path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers == whole.headers
    assert "head" not in call.app.openapi()["paths"]["/api/v1/streams"]  # type: ignore[attr-defined]


def test_head_answers_errors_without_a_body(guarded: Any, make_caller: Any) -> None:
    call = make_caller(guarded)
    for path, status in (("/users/me", 401), ("/nowhere", 404), ("/login/response", 404)):
        answer = call("HEAD", path)
        assert (answer.status_code, answer.content) == (status, b"")


def test_publishers_are_the_senders_of_stored_messages(call: Caller, broker: Any, alice: Any) -> None:
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 1, broker.clock()), None])
    foreign = broker.say("s", 2)
    broker.core.settle()
    expected = sorted([alice.address, broker.adapter.bridge_signer.address(foreign)])
    assert call("GET", "/streams/s/publishers").json() == {"addresses": expected}


def test_rights_decide_access_to_streams_publishers_and_subscribers(
    guarded: Any, make_caller: Any, alice: Any, bob: Any
) -> None:
    call = make_caller(guarded)
    token = guarded.token(bob)
    assert call("GET", "/streams/s").status_code == 403
    assert call("GET", "/streams/s", "made up").status_code == 401
    assert call("GET", "/streams/other", token).status_code == 403
    assert call("GET", "/streams/s", token).status_code == 200
    assert call("GET", "/streams/s", "trellis_machine").status_code == 200
    assert call("GET", "/users/me", "trellis_machine").json() == {"name": "machine", "username": "machine"}
    assert call("GET", f"/streams/s/publisher/{alice.address.upper().replace('0X', '0x')}", token).status_code == 200
    assert call("GET", f"/streams/s/publisher/{bob.address}", token).status_code == 404
    assert call("GET", f"/streams/s/subscriber/{bob.address}", token).status_code == 200
    assert call("GET", f"/streams/s/subscriber/0x{'0' * 40}", token).status_code == 404
    operations = [entry["operation"] for entry in call("GET", "/streams/s/permissions/me", token).json()]
    assert operations == ["stream_get", "stream_subscribe"]
    assert call("POST", "/streams", token, content='{"id":"s"}').status_code == 403
    assert call("GET", "/streams").json() == []


def test_origins_are_checked_as_on_the_websocket(call: Caller) -> None:
    stranger = call("GET", "/streams/s", headers={"Origin": "https://evil.example"})
    assert stranger.status_code == 403
    assert "auth.origins" in stranger.json()["message"]
    assert "access-control-allow-origin" not in stranger.headers
    for method in ("GET", "OPTIONS"):
        welcome = call(method, "/streams/s", headers={"Origin": "http://localhost:3000"})
        assert welcome.is_success
        assert welcome.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "streamr-client" in welcome.headers["access-control-allow-headers"].lower()


def test_a_path_that_is_not_utf_8_is_refused(call: Caller) -> None:
    for path in ("/streams/%ff", "/streams/%ff/data", "/login/challenge/%80", "/streams/a%C3/data/partitions/0/last"):
        for method in ("GET", "POST"):
            assert call(method, path, content="{}").status_code in (400, 404), path
    assert call("GET", "/streams/%ff").json()["code"] == "BAD_REQUEST"
    assert "error" in call("GET", "/streams/%ff/data/partitions/0/last").json()


OPERATIONS = (
    "streams s a%2Fb data partitions 0 last from range permissions me publisher login challenge response apikey users"
    " fields storageNodes metadata storage %00 %ff %F0%9F%8C%B3"
)
FIELDS = "id name partitions config operation user anonymous challenge signature address apiKey"
words = st.sampled_from([*OPERATIONS.split(), ""])
anything = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(FIELDS.split()), values)
bodies = st.binary(max_size=40) | (objects | values).map(lambda value: json.dumps(value).encode())


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"]),
    path=st.lists(words, max_size=7),
    query=st.dictionaries(st.sampled_from(["fromTimestamp", "toTimestamp", "count", "ts", "seq", "max"]), anything),
    body=bodies,
    token=st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_fuzzed_requests_cause_no_server_error(
    call: Caller, method: str, path: list[str], query: dict[str, str], body: bytes, token: str | None
) -> None:
    answer = call(method, "/" + "/".join(path), token, params=query, content=body)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and method != "HEAD":
        assert {"code", "message"} == set(answer.json()) or set(answer.json()) == {"error"}


def test_streams_are_listed_in_slices_of_a_little_work_each(broker: Any) -> None:
    """However many channels there are, of which none may be wanted."""
    channels = broker.bus.channels
    names = [name for n in range(500) for name in (f"s{n:03}", f"s{n:03}#1", f"s{n:03}#2")]
    for name in names:
        channels.restore(name, {})
    channels.restore("closed", {}, open=False)
    core_api, caller, looked = CoreApi(broker.adapter.parts), RestCaller(None), list[str]()
    exists = channels.exists

    def counted(name: str) -> bool:
        looked.append(name)
        return bool(exists(name))

    channels.exists = counted

    def listed(**query: str) -> list[str]:
        texts = list[bytes]()
        for text in core_api.streams(caller, query):
            assert len(looked) <= CHANNELS_PER_SLICE
            looked.clear()
            texts.append(text)
        return [stream["id"] for stream in json.loads(b"".join(texts))]

    every = [f"s{n:03}" for n in range(500)]
    assert listed() == every[:256]
    assert listed(offset="300") == every[300:]
    assert listed(offset="498", max="1") == ["s498"]
    assert listed(search="99") == [name for name in every if "99" in name]
    assert listed(search="nowhere") == listed(offset="500") == listed(max="0") == []
    assert listed(name="s007") == ["s007"]
    assert listed(name="closed") == listed(name="nowhere") == []


def test_a_long_list_of_streams_arrives_whole(call: Caller, broker: Any) -> None:
    for n in range(400):
        broker.bus.channels.restore(f"{n:03}" + "x" * 200, {})
    answer = call("GET", "/streams")
    assert [stream["id"][:3] for stream in answer.json()] == [f"{n:03}" for n in range(256)]
    assert len(answer.content) > 1 << 16
    assert call("HEAD", "/streams").content == b""
