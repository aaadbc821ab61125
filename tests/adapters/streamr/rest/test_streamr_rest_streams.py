"""Streams are created, described, shared and deleted by REST, as genuine clients do."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from gateway.access.authorization import ApiKey, digest
from gateway.access.revocation import Revocation
from gateway.access.throttle import Throttle
from gateway.http import bodies
from gateway.settings.limits import Limits, Rate
from tests.adapters.streamr.rest.conftest import Caller

KEY = "trellis_machine"


@pytest.fixture
def broker(make_broker: Callable[..., Any]) -> Any:
    """A gateway where everybody may do everything, and administer too."""
    return make_broker(grants={"anonymous": ("*:*", "admin:*")})


@pytest.fixture
def guarded(make_broker: Callable[..., Any], alice: Any) -> Any:
    """A gateway with one operator's key, where alice may use the streams called `a/...`."""
    return make_broker(
        grants={f"streamr:{alice.address}": ("subscribe:a/*", "publish:a/*")},
        keys=(ApiKey("machine", digest(KEY), ("*:*", "admin:*")),),
    )


def test_a_stream_is_created_with_its_description_and_updated(call: Caller, broker: Any) -> None:
    said = {"id": "s", "partitions": 3, "requireSignedData": True, "description": "mine", "colour": "green"}
    made = call("POST", "/streams", json=said).json()
    assert (made["id"], made["partitions"], made["requireSignedData"], made["description"]) == ("s", 3, True, "mine")
    assert "colour" not in made
    assert call("GET", "/streams/s").json() == made
    assert call("GET", "/streams/s/validation").json() == {
        "id": "s",
        "partitions": 3,
        "requireSignedData": True,
        "requireEncryptedData": False,
    }
    changed = call("PUT", "/streams/s", json={**made, "description": "ours", "requireSignedData": False}).json()
    assert changed == made | {"description": "ours", "requireSignedData": False}
    again = call("POST", "/streams", json={"id": "s", "partitions": 9})
    assert again.json()["partitions"] == 3, "one that exists stays as it is"
    assert broker.ask(broker.open(), [2, 9, "r", "s", 2, None])[0][1] == 2


def test_a_deleted_stream_has_the_defaults_and_is_not_listed(call: Caller) -> None:
    call("POST", "/streams", json={"id": "s", "partitions": 3})
    assert call("DELETE", "/streams/s").status_code == 204
    assert call("GET", "/streams").json() == []
    assert call("GET", "/streams/s").json()["partitions"] == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/streams", {"id": "new", "partitions": 0}),
        ("PUT", "/streams/s", {"requireSignedData": "yes"}),
        ("POST", "/streams/s/permissions", {"operation": "fly", "anonymous": True}),
        ("POST", "/streams/s/permissions", {"operation": ["stream_get"], "anonymous": True}),
        ("POST", "/streams/s/permissions", {"operation": "stream_get"}),
        ("POST", "/streams/s/permissions", {"operation": "stream_get", "user": "bob@example.com"}),
        ("POST", "/streams/s/permissions", {"operation": "stream_get", "user": 7}),
        ("POST", "/streams/s/storageNodes", {"address": "0x1"}),
    ],
)
def test_invalid_requests_answer_validation_error(call: Caller, method: str, path: str, body: Any) -> None:
    refused = call(method, path, json=body)
    assert refused.status_code == 422
    assert refused.json()["code"] == "VALIDATION_ERROR"
    assert call("GET", "/streams").json() == []


def test_configured_streams_cannot_be_changed(make_broker: Any, make_caller: Any) -> None:
    call = make_caller(make_broker(streams={"wide": 5}, grants={"anonymous": ("*:*", "admin:*")}))
    assert call("POST", "/streams", json={"id": "wide", "partitions": 3}).json()["partitions"] == 5
    assert call("PUT", "/streams/wide", json={"partitions": 3}).status_code == 422


def test_fields_are_stored_and_detected_in_the_newest_message(call: Caller, broker: Any) -> None:
    fields = [{"name": "n", "type": "number"}]
    assert call("POST", "/streams/s/fields", json=fields).json()["config"] == {"fields": fields}
    assert call("GET", "/streams/s").json()["config"] == {"fields": fields}
    broker.say("s", {"old": 1})
    broker.say("s", {"n": 1.5, "t": "x", "b": True, "l": [], "m": {}, "nothing": None})
    broker.core.settle()
    found = call("GET", "/streams/s/detectFields").json()["config"]["fields"]
    assert {field["name"]: field["type"] for field in found} == {
        "n": "number",
        "t": "string",
        "b": "boolean",
        "l": "list",
        "m": "map",
    }


@pytest.mark.parametrize("content", [{"long": "x" * (1 << 16)}, {f"n{n}": n for n in range(1_100)}])
def test_no_fields_are_detected_in_a_message_that_takes_long_to_read(call: Caller, broker: Any, content: Any) -> None:
    broker.say("s", content)
    broker.core.settle()
    assert call("GET", "/streams/s/detectFields").json()["config"]["fields"] == []


def test_an_administrator_grants_and_revokes_permissions(guarded: Any, make_caller: Any, alice: Any, bob: Any) -> None:
    call = make_caller(guarded)
    token, theirs = guarded.token(alice), guarded.token(bob)
    assert call("POST", "/streams", token, json={"id": "a/s", "partitions": 2}).json()["partitions"] == 2
    assert call("GET", "/streams/a/s", theirs).status_code == 403
    for method, path in (("PUT", ""), ("DELETE", ""), ("GET", "/permissions"), ("POST", "/permissions")):
        assert call(method, f"/streams/a/s{path}", token, json={}).status_code == 403, "who made it has no more rights"
    given = {"operation": "stream_subscribe", "user": bob.address.upper().replace("0X", "0x")}
    permission = call("POST", "/streams/a/s/permissions", KEY, json=given).json()
    assert permission == {"id": 1, "user": bob.address, "operation": "stream_subscribe"}
    assert call("GET", "/streams/a/s/permissions", KEY).json() == [permission]
    assert call("GET", "/streams/a/s", theirs).status_code == 200
    assert [entry["operation"] for entry in call("GET", "/streams/a/s/permissions/me", theirs).json()] == [
        "stream_get",
        "stream_subscribe",
    ]
    assert call("GET", f"/streams/a/s/subscriber/{bob.address}", token).json() == {}
    assert call("GET", "/streams/a/s/subscribers", token).json() == {"addresses": sorted([alice.address, bob.address])}
    session = guarded.open()
    assert guarded.ask(session, [2, 9, "r", "a/s", 1, theirs])[0][1] == 2
    assert call("DELETE", "/streams/a/s/permissions/1", KEY).status_code == 204
    assert call("DELETE", "/streams/a/s/permissions/1", KEY).status_code == 404
    assert call("DELETE", "/streams/a/s/permissions/x", KEY).status_code == 404
    assert guarded.ask(guarded.open(), [2, 9, "r", "a/s", 1, theirs])[0][1] == 7


def test_revoking_a_permission_ends_what_depends_on_it(guarded: Any, make_caller: Any, alice: Any, bob: Any) -> None:
    call, steps = make_caller(guarded), deque[Callable[[], None]]()
    Revocation(guarded.access, guarded.core.bus, steps.append)

    def run() -> None:
        while steps:
            steps.popleft()()

    given = {"operation": "stream_subscribe", "user": bob.address}
    permission = call("POST", "/streams/a%2Fs/permissions", KEY, json=given).json()
    theirs, others = guarded.open(), guarded.open()
    assert guarded.ask(theirs, [2, 9, "r", "a/s", 0, guarded.token(bob)])[0][1] == 2
    assert guarded.ask(others, [2, 9, "r", "a/s", 0, guarded.token(alice)])[0][1] == 2
    assert call("DELETE", f"/streams/a%2Fs/permissions/{permission['id']}", KEY).status_code == 204
    assert theirs.closing is None, "all connections are checked in slices, in later turns of the loop"
    run()
    assert theirs.closing is not None
    assert theirs.closing.code == 1008
    assert others.closing is None
    call("POST", "/streams/a%2Fs/permissions", KEY, json=given)
    again = guarded.open()
    assert guarded.ask(again, [2, 9, "r", "a/s", 0, guarded.token(bob)])[0][1] == 2
    assert call("DELETE", "/streams/a%2Fs", KEY).status_code == 204
    run()
    assert again.closing is not None


def test_permissions_can_be_granted_to_everybody(guarded: Any, make_caller: Any, bob: Any) -> None:
    call = make_caller(guarded)
    call("POST", "/streams", KEY, json={"id": "s"})
    call("POST", "/streams/s/permissions", KEY, json={"operation": "stream_get", "anonymous": True})
    assert call("GET", "/streams/s").status_code == 200
    assert guarded.ask(guarded.open(), [2, 9, "r", "s", 0, None])[0][1] == 7
    call("POST", "/streams/s/permissions", KEY, json={"operation": "stream_subscribe", "public": True})
    assert guarded.ask(guarded.open(), [2, 9, "r", "s", 0, None])[0][1] == 2
    assert guarded.ask(guarded.open(), [2, 9, "r", "s", 0, guarded.token(bob)])[0][1] == 2


def test_without_authentication_everything_but_administration_is_allowed(
    make_broker: Callable[..., Any], make_caller: Callable[[Any], Caller], alice: Any
) -> None:
    broker = make_broker()
    call = make_caller(broker)
    mine = {entry["operation"] for entry in call("GET", "/streams/s/permissions/me").json()}
    assert mine == {"stream_get", "stream_subscribe", "stream_publish"}
    assert call("PUT", "/streams/s", json={"description": "mine"}).status_code == 403
    assert call("GET", "/streams/s/permissions").status_code == 403
    assert call("DELETE", "/streams/s").status_code == 403
    broker.ask(broker.open(), [2, 9, "r", "s", 0, broker.token(alice)])
    assert call("GET", "/streams/s/subscribers").json() == {"addresses": [alice.address]}


def test_publishers_are_listed_before_they_are_indexed(call: Caller, broker: Any, alice: Any) -> None:
    broker.ask(broker.open(), [2, 8, "r", alice.message("s", 1, broker.clock()), None])
    assert call("GET", "/streams/s/publishers").json() == {"addresses": [alice.address]}


def test_streams_are_listed_by_name_by_text_and_a_page_at_a_time(call: Caller) -> None:
    for name in ("one", "two", "Three"):
        call("POST", "/streams", json={"id": name})

    def ids(query: str) -> list[str]:
        return [stream["id"] for stream in call("GET", f"/streams?{query}").json()]

    assert ids("") == ["Three", "one", "two"]
    assert ids("search=T&sortBy=name&order=asc&public=false") == ["Three", "two"]
    assert ids("max=1&offset=1") == ["one"]
    assert ids("name=two") == ["two"]
    assert ids("max=999999999&offset=000000001") == ids("offset=1")
    assert call("GET", "/streams?max=-1").status_code == 400
    refused = call("GET", "/streams?max=1000000000")
    assert refused.status_code == 400
    expected = "max: expected a whole number of at most 9 digits, not 1000000000"
    assert expected in refused.text


def test_every_stream_is_kept_by_this_gateway(call: Caller, alice: Any) -> None:
    call("POST", "/streams", json={"id": "s"})
    [node] = call("GET", "/streams/s/storageNodes").json()
    address = node["storageNodeAddress"]
    assert call("POST", "/streams/s/storageNodes", json={"address": address}).json() == node
    assert [stream["id"] for stream in call("GET", f"/storageNodes/{address}/streams").json()] == ["s"]
    assert call("GET", f"/storageNodes/{alice.address}/streams").status_code == 404


def test_an_api_key_serves_as_session_token_until_it_is_removed(guarded: Any, make_caller: Any) -> None:
    call = make_caller(guarded)
    token = call("POST", "/login/apikey", json={"apiKey": KEY}).json()
    assert set(token) == {"token", "expires"}
    assert call("GET", "/users/me", token["token"]).json() == {"name": "machine", "username": "machine"}
    guarded.access.set_keys([])
    assert call("GET", "/users/me", token["token"]).status_code == 401
    assert call("POST", "/login/apikey", json={"apiKey": KEY}).status_code == 401
    assert call("POST", "/login/apikey", json={}).status_code == 400
    assert call("POST", "/login/password", json={"username": "a", "password": "b"}).status_code == 404


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("PATCH", "/streams/s"), ("DELETE", "/users/me")])
def test_unknown_resources_answer_not_found_in_the_same_form(call: Caller, method: str, path: str) -> None:
    refused = call(method, path)
    assert refused.status_code == 404
    assert refused.json()["code"] == "NOT_FOUND"


def test_requests_over_the_rate_answer_429(broker: Any, make_caller: Any) -> None:
    once = Rate(rate=0.1, burst=1)
    broker.bus.throttle = Throttle(Limits(address=once), lambda: 0.0)
    call = make_caller(broker)
    assert call("GET", "/streams/s").status_code == 200
    refused = call("GET", "/streams/s")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
    assert refused.json()["code"] == "TOO_MANY_REQUESTS"


def test_an_unfinished_body_times_out(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await anyio.sleep(60)

    assert call("POST", "/streams", content=slowly()).json()["code"] == "TIMEOUT"


def test_an_internal_error_hides_its_cause(call: Caller, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.adapter.streams, "shown", lambda _stream: 1 / 0)
    refused = call("GET", "/streams/s")
    assert refused.status_code == 500
    assert refused.json()["code"] == "INTERNAL_ERROR"
    assert "division" not in refused.text
    assert broker.core.metrics.counts["faults"]["request",] == 1


def test_answers_match_the_openapi_document(call: Caller) -> None:
    """Every call in /docs exists, has the parameters of its path, and answers with a status that is documented."""
    document = call.app.openapi()  # type: ignore[attr-defined]
    assert len(document["paths"]) > 15
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            names = {found["name"] for found in described["parameters"] if found["in"] == "path"}
            concrete = path.removeprefix("/api/v1")
            for name in names:
                assert f"{{{name}}}" in path, (path, name)
                concrete = concrete.replace(f"{{{name}}}", "0")
            assert "{" not in concrete, path
            body: dict[str, Any] = {"json": {}} if "requestBody" in described else {}
            answer = call(method.upper(), concrete, **body)
            assert str(answer.status_code) in described["responses"], (method, path, answer.status_code)
            types = described["responses"][str(answer.status_code)].get("content", {})
            assert answer.headers.get("content-type") in {*types, None}, (method, path)
