"""The REST face over real HTTP: what is accepted is on disk, passes through unchanged, and is refused with reasons."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.access.auth import KeyFile
from gateway.core import jsontext
from gateway.core.errors import Unavailable
from gateway.core.message import Message
from gateway.http import bodies, bulk, explanations, keys, media, operations, rest, sync, traces
from gateway.http.bulk import LineSplitter
from gateway.http.publish import Publisher
from gateway.storage import index, log
from gateway.webhooks import routes

PATIENCE = 60.0
ROUTES = (
    *(*rest.ROUTES, *keys.ROUTES, *traces.ROUTES, *sync.ROUTES),
    *(*operations.ROUTES, *explanations.ROUTES, *routes.ROUTES),
)
NDJSON = {"Content-Type": "application/x-ndjson"}
LOBBY = "/v1/channels/lobby/messages"
NUMBERS = count()


@pytest.fixture
def http(local: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=local.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def operator(make_local: Callable[..., Any]) -> Iterator[httpx.Client]:
    """Somebody who may administer: without keys and grants nobody may."""
    server = make_local(auth={"grants": {"anonymous": ["*:*", "admin:*"]}})
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def client_of() -> Iterator[Callable[..., httpx.Client]]:
    clients: list[httpx.Client] = []

    def make(server: Any, key: str | None = None, **headers: str) -> httpx.Client:
        bearer = {"Authorization": f"Bearer {key}"} if key else {}
        clients.append(httpx.Client(base_url=server.url, timeout=PATIENCE, headers=headers | bearer))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def say(client: httpx.Client, content: Any = "hi", path: str = LOBBY, **headers: str) -> Any:
    response = client.post(path, content=json.dumps(content), headers=headers)
    assert response.status_code == 201, response.text
    return response.json()


def lines(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def problem(response: httpx.Response, status: int) -> str:
    """The detail of what must be a problem."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["title"]
    detail: str = body["detail"]
    assert detail
    return detail


# One message


def test_a_message_is_answered_with_where_it_stands_and_found_there(http: httpx.Client) -> None:
    taken = say(http, {"text": "hello"})
    assert set(taken) == {"id", "channel", "sequence", "timestamp", "undelivered"}
    assert taken["channel"] == "lobby"
    (found,) = http.get(LOBBY).json()["messages"]
    assert found == http.get(f"{LOBBY}/{taken['id']}").json()
    assert found == taken | {
        "sender": {"peer": found["sender"]["peer"], "protocol": "rest", "identity": "(no key)", "name": None},
        "content": {"text": "hello"},
        "inReplyTo": None,
        "native": {},
    }


def test_an_acceptance_waits_for_the_disk(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    say(http)
    disk, reached, sync = threading.Event(), threading.Event(), os.fdatasync

    def slow(file: int) -> None:
        reached.set()
        assert disk.wait(PATIENCE)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    with ThreadPoolExecutor() as pool:
        one = pool.submit(say, http, "one")
        many = pool.submit(http.post, LOBBY, content=b"2\n3\n", headers=NDJSON)
        assert reached.wait(PATIENCE)
        for _ in range(20):
            assert len(http.get(LOBBY).json()["messages"]) == 1, "what is not on disk shows no sequence"
        assert not one.done()
        assert not many.done()
        disk.set()
        assert one.result()["sequence"]
        assert len(lines(many.result())) == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["1e400", "-0.0", "0.10", "1E+2"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES, spaces=st.sampled_from(["", " ", "\n", "\r\n  ", "\t"]))
def test_property_content_comes_back_as_it_was_written(http: httpx.Client, value: Any, spaces: str) -> None:
    text = json.dumps(value, separators=("," + spaces, ":" + spaces)).replace('"1e400"', "1e400")
    taken = http.post(LOBBY, content=spaces + text + spaces).json()
    kept = text.replace("\n", " ").replace("\r", " ")
    for path in (f"{LOBBY}/{taken['id']}", f"{LOBBY}?order=desc&limit=1"):
        assert f'"content":{kept},"inReplyTo"'.encode() in http.get(path).content


def test_a_message_answers_another_by_its_id(http: httpx.Client) -> None:
    first = say(http)
    for reference, parent in [(first["id"], first["id"]), ("nobody's", None), ("x" * 10_000, None), (7, None)]:
        taken = say(http, {"inReplyTo": reference})
        found = http.get(f"{LOBBY}/{taken['id']}").json()
        assert found["inReplyTo"] == parent
        assert found["content"] == {"inReplyTo": reference}
    raw = http.post(LOBBY, content=rb'{"inReplyTo": "\ud800"}')
    assert raw.status_code == 201


@pytest.mark.parametrize("name", ["a/b", "100%", "ümläut ☃", "a?b#c", "..", "x" * 255])
def test_any_name_can_be_a_channel(http: httpx.Client, name: str) -> None:
    path = f"/v1/channels/{quote(name, safe='')}"
    if name == "..":
        path = "/v1/channels/%2E%2E"
    taken = say(http, path=f"{path}/messages")
    assert taken["channel"] == name
    assert http.get(path).json()["name"] == name
    assert len(http.get(f"{path}/messages").json()["messages"]) == 1
    assert name in [channel["name"] for channel in http.get("/v1/channels").json()["channels"]]


# Lines


def test_lines_are_answered_in_order_refused_ones_too(http: httpx.Client) -> None:
    body = b'1\n{"broken\n\n[2]\r\n' + b'"' + b"x" * media.MAX_CONTENT + b'"\n' + b'"last"'
    results = lines(http.post(LOBBY, content=body, headers=NDJSON))
    assert [result.get("status", 201) for result in results] == [201, 400, 201, 413, 201]
    assert [result["line"] for result in results if "status" in result] == [2, 4]
    accepted = [result["sequence"] for result in results if "sequence" in result]
    assert [m["sequence"] for m in http.get(LOBBY).json()["messages"]] == accepted == sorted(accepted)
    assert [m["content"] for m in http.get(LOBBY).json()["messages"]] == [1, [2], "last"]


@settings(max_examples=200)
@given(text=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200)), limit=st.integers(1, 60))
def test_property_lines_are_the_same_however_they_are_cut(text: bytes, cuts: list[int], limit: int) -> None:
    cutter = LineSplitter(limit)
    places = sorted({0, *cuts, len(text)})
    found = [line for a, b in pairwise(places) for line in cutter.feed(text[a:b])] + cutter.end()
    whole = [line for line in text.split(b"\n") if line.strip(b" \t\r\n") or len(line) > limit]
    assert found == [line if len(line) <= limit else None for line in whole]


def test_lines_that_arrive_together_are_published_together(local: Any, http: httpx.Client) -> None:
    runs, submit = list[int](), local.gateway.bus.submit

    def note(run: Any, origins: Any) -> None:
        runs.append(len(run))
        submit(run, origins)

    local.gateway.bus.submit = note
    assert len(lines(http.post(LOBBY, content=b'{"n":1}\n' * 1_000, headers=NDJSON))) == sum(runs) == 1_000
    assert len(runs) < 100


LINES = [
    b"1",
    b'{"a": [1, 2]}',
    b"{",
    b"",
    b"\xff",
    b'{"inReplyTo":"none"}',
    b'"' + b"x" * 100_000 + b'"',
    b'"\\ud800"',
]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.lists(st.sampled_from(LINES), max_size=12), key=st.booleans(), fails=st.booleans())
def test_property_lines_at_once_are_lines_one_by_one(
    local: Any, http: httpx.Client, body: list[bytes], key: bool, fails: bool
) -> None:
    """Also if one of the messages that are accepted cannot be logged."""
    bus, told = local.gateway.bus, list[Any]()
    submit = bus.submit

    def refuse(run: Any, origins: Any) -> None:
        if any(message.content == LINES[1] for message in run) and fails:
            raise Unavailable("no room")
        submit(run, origins)

    for alone in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bus, "submit", refuse)
            if alone:
                patch.setattr(Publisher, "takes_in_runs", lambda *_: False)
            more = {"Idempotency-Key": f"{alone} {next(NUMBERS)}"} if key else {}
            before = local.gateway.log.next_seq
            results = lines(http.post(LOBBY, content=b"\n".join(body), headers=NDJSON | more))
        said = [local.gateway.index.entry(seq) for seq in range(before, local.gateway.log.next_seq)]
        place = count(1)
        shown = [result if "status" in result else (next(place), result["undelivered"]) for result in results]
        told.append((shown, [(entry.content, entry.parent) for entry in said if isinstance(entry, Message)]))
    assert told[0] == told[1]


class Wire:
    """A body of lines that is sent and answered a piece at a time, over a plain socket."""

    def __init__(self, server: Any, buffer: int = 1 << 16) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE)
        host, port = server.url.removeprefix("http://").split(":")
        self.socket.connect((host, int(port)))
        head = f"POST {LOBBY} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        self.socket.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        self._stream = self.socket.makefile("rb")
        try:
            while self._stream.readline().strip():
                pass
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def receive(self) -> list[Any]:
        """The results of one chunk; none at the end."""
        size = int(self._stream.readline(), 16)
        data = self._stream.read(size + 2)[:-2]
        return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_lines_are_answered_while_more_are_written(make_process: Callable[..., Any], loop: str) -> None:
    with Wire(make_process(loop=loop)) as wire:
        for n in range(5):
            wire.send(b"%d" % n)
            wire.send(b"\n")
            (result,) = wire.receive()
            assert result["sequence"]
        wire.end()
        assert wire.receive() == []


@pytest.mark.slow
def test_a_client_that_does_not_read_its_results_is_not_read_either(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_UNSENT", 1 << 16)
    total, size = 60, 1_000
    with Wire(local, buffer=4096) as wire:
        sent: list[int] = []

        def write() -> None:
            for n in range(total):
                wire.send(b'"%d"\n' % n * size)
                sent.append(n)
            wire.end()

        writer = threading.Thread(target=write)
        writer.start()
        taken = -1
        while (now := local.gateway.metrics.counts["messages"]["rest",]) != taken:
            taken = now
            writer.join(0.5)
        assert taken < total * size, "it is slowed"
        results = 0
        while chunk := wire.receive():
            assert all("sequence" in result for result in chunk)
            results += len(chunk)
        writer.join(PATIENCE)
    assert results == total * size


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_gateway_that_stops_ends_its_answers(make_process: Callable[..., Any], loop: str) -> None:
    process = make_process(loop=loop)
    with Wire(process) as wire:
        wire.send(b"1\n2")
        assert len(wire.receive()) == 1
        stopping = threading.Thread(target=process.stop)
        stopping.start()
        assert wire.receive() == [], "the line that was not finished is not taken"
        stopping.join(PATIENCE)
        assert not stopping.is_alive()


def test_a_line_that_was_cut_off_is_not_published(local: Any, http: httpx.Client) -> None:
    with Wire(local) as wire:
        wire.send(b'"whole"\n1234')
        assert len(wire.receive()) == 1
    for _ in range(20):
        assert [m["content"] for m in http.get(LOBBY).json()["messages"]] == ["whole"]


# Idempotency


def test_a_key_publishes_once(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "k1"}
    first = say(http, "one", **key)
    assert say(http, "one", **key) == first
    assert "Idempotency-Key" in problem(http.post(LOBBY, content='"two"', headers=key), 422)
    assert say(http, "one", "/v1/channels/other/messages", **key)["sequence"] > first["sequence"]
    assert len(http.get(LOBBY).json()["messages"]) == 1
    problem(http.post(LOBBY, content="1", headers={"Idempotency-Key": "k" * 10_000}), 400)


def test_a_key_publishes_once_even_at_once(http: httpx.Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: say(http, "one", **{"Idempotency-Key": "k"})["id"], range(32)))
    assert len(set(answers)) == 1
    assert len(http.get(LOBBY).json()["messages"]) == 1


def test_a_key_publishes_each_line_once(http: httpx.Client) -> None:
    headers = NDJSON | {"Idempotency-Key": "k"}
    first = lines(http.post(LOBBY, content=b"1\n2\n", headers=headers))
    second = lines(http.post(LOBBY, content=b"1\n2\n3\n", headers=headers))
    assert second[:2] == first
    changed = lines(http.post(LOBBY, content=b"1\n5\n", headers=headers))
    assert (changed[0], changed[1]["status"]) == (first[0], 422)
    assert len(http.get(LOBBY).json()["messages"]) == 3


def test_a_key_is_known_after_a_restart(make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]) -> None:
    key = {"Idempotency-Key": "k"}
    first = say(client_of(make_local()), "one", **key)
    again = client_of(make_local())
    assert say(again, "one", **key) == first
    problem(again.post(LOBBY, content="2", headers=key), 422)
    assert len(again.get(LOBBY).json()["messages"]) == 1


def test_keys_of_two_senders_are_two(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client], tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "data/keys/api-keys.json")
    secrets = [keys.add("ada"), keys.add("bob")]
    local = make_local()
    both = [say(client_of(local, secret), "one", **{"Idempotency-Key": "k"}) for secret in secrets]
    assert both[0]["id"] != both[1]["id"]
    senders = [m["sender"] for m in client_of(local, secrets[0]).get(LOBBY).json()["messages"]]
    assert [(sender["identity"], sender["name"]) for sender in senders] == [("ada", "ada"), ("bob", "bob")]


# History


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_history_comes_in_pages(http: httpx.Client, order: str) -> None:
    body = b"".join(b"%d\n" % n for n in range(100))
    said = [result["sequence"] for result in lines(http.post(LOBBY, content=body, headers=NDJSON))]
    say(http, path="/v1/channels/other/messages")
    url, seen = f"{LOBBY}?limit=33&order={order}&after={said[4]}&before={said[95]}", []
    pages = 0
    while url:
        page = http.get(url).json()
        seen += [message["sequence"] for message in page["messages"]]
        url, pages = page["next"], pages + 1
    wanted = said[5:95]
    assert seen == (wanted if order == "asc" else wanted[::-1])
    assert pages == 3
    assert http.get(f"{LOBBY}?limit=100").json()["next"] is None


def test_history_by_sender_and_of_big_messages(http: httpx.Client) -> None:
    big = "x" * 1_000_000
    for n in range(6):
        say(http, f"{n}{big}")
    page = http.get(LOBBY).json()
    assert 0 < len(page["messages"]) < 6, "an answer is bounded, whatever the limit"
    rest = http.get(page["next"]).json()
    assert [m["content"][0] for m in page["messages"] + rest["messages"]] == list("012345")
    number = page["messages"][0]["sender"]["peer"]
    assert len(http.get(f"{LOBBY}?sender={number}&limit=2").json()["messages"]) == 2
    assert http.get(f"{LOBBY}?sender={number + 1}").json() == {"messages": [], "next": None}


# Channels and peers


def test_channels_are_made_shown_and_closed(operator: httpx.Client) -> None:
    http = operator
    problem(http.get("/v1/channels/room"), 404)
    made = http.put("/v1/channels/room")
    assert (made.status_code, http.put("/v1/channels/room").status_code) == (201, 200)
    assert made.json() == {"name": "room", "addresses": {}, "members": 0, "sequence": 0}
    taken = say(http, path="/v1/channels/room/messages")
    assert http.get("/v1/channels/room").json()["sequence"] == taken["sequence"]
    assert http.delete("/v1/channels/room").status_code == 204
    problem(http.get("/v1/channels/room"), 404)
    assert http.get("/v1/channels").json()["channels"] == []
    assert len(http.get("/v1/channels/room/messages").json()["messages"]) == 1, "its history stays"


def test_channels_come_in_pages(http: httpx.Client) -> None:
    names = [f"room & {n}" for n in range(7)]
    for name in names:
        http.put(f"/v1/channels/{quote(name)}")
    url, seen = "/v1/channels?limit=3", []
    while url:
        page = http.get(url).json()
        seen += [channel["name"] for channel in page["channels"]]
        url = page["next"]
    assert seen == names


def test_only_configured_channels_exist_where_that_is_set(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]
) -> None:
    http = client_of(make_local(channels={"create": "configured", "names": ["lobby"]}))
    say(http)
    assert http.get(LOBBY).status_code == 200
    for method, path in [("POST", "/messages"), ("GET", "/messages"), ("GET", "/events"), ("PUT", ""), ("GET", "")]:
        problem(http.request(method, f"/v1/channels/other{path}", content="1"), 404)


def test_peers_are_found_by_number(http: httpx.Client) -> None:
    say(http)
    number = http.get(LOBBY).json()["messages"][0]["sender"]["peer"]
    assert http.get(f"/v1/peers/{number}").json() == {
        "number": number,
        "protocol": "rest",
        "identity": "(no key)",
        "name": None,
        "connections": 0,
        "connectionNumbers": [],
        "protocols": ["rest"],
        "boundTo": None,
        "key": None,
        "addresses": {},
        "channels": [],
        "saidIn": ["lobby"],
    }
    problem(http.get("/v1/peers/99999"), 404)
    assert http.get("/v1/channels/lobby/peers").json() == {"peers": []}
    assert "/peers" in problem(http.post("/v1/channels/lobby/peers/99999/messages", content="1"), 404)
    with http.stream("GET", "/v1/channels/lobby/events") as response:
        received = response.iter_lines()
        welcome = next(line for line in received if line.startswith("data: "))
        own = json.loads(welcome.removeprefix("data: "))["number"]
        shown = http.get(f"/v1/peers/{own}").json()
        assert (shown["number"], shown["connections"]) == (own, 1)
        sent = http.post(f"/v1/channels/lobby/peers/{own}/messages", content='"psst"')
        assert (sent.status_code, sent.json()["delivered"]) == (202, 1)
    assert len(http.get(LOBBY).json()["messages"]) == 1, "what is direct is not history"


# What is refused


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/channels/lobby/nothing", 404),
        ("PATCH", "/v1/channels/lobby", 405),
        ("DELETE", "/v1/log", 405),
        ("OPTIONS", "/v1/channels", 405),
        ("GET", f"{LOBBY}?limit=0", 422),
        ("GET", f"{LOBBY}?limit=1000", 422),
        ("GET", f"{LOBBY}?after=x", 422),
        ("GET", f"{LOBBY}?after={1 << 70}", 422),
        ("GET", f"{LOBBY}?order=up", 422),
        ("GET", f"{LOBBY}/nobody", 404),
        ("GET", "/v1/peers/x", 422),
        ("GET", "/v1/channels/%FF/messages", 400),
        ("GET", "/v1/channels/a%00b/messages", 404),
        ("POST", "/v1/channels/a%0Ab/messages", 404),
        ("PUT", "/v1/channels/a%0Ab", 404),
        ("PUT", f"/v1/channels/{'x' * 256}", 404),
        ("POST", LOBBY, 400),
    ],
)
def test_every_failure_is_a_problem(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path, content=b"" if status == 400 else b"1")
    problem(response, status)
    assert ("allow" in response.headers) == (status == 405)


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b"1 2", b'"\xff"', b"[" * 5_000, b"\xef\xbb\xbf1"])
def test_what_is_no_json_is_refused(http: httpx.Client, body: bytes) -> None:
    problem(http.post(LOBBY, content=body), 400)


def test_too_much_is_refused(http: httpx.Client) -> None:
    body = b'"' + b"x" * media.MAX_CONTENT + b'"'
    problem(http.post(LOBBY, content=body), 413)
    problem(http.post(LOBBY, content=iter([body])), 413)
    assert http.post(LOBBY, content=body[:1] + body[3:]).status_code == 201


def test_a_bug_is_a_problem_and_counted(local: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.gateway.bus, "peers_in", lambda _channel: 1 / 0)
    assert "division" not in problem(http.get("/v1/channels/lobby/peers"), 500)
    assert http.get("/v1/stats").json()["faults"]["request"] == 1  # beside "late" on a machine that does much else


def test_a_deleted_channel_makes_room_for_another_also_after_a_restart(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]
) -> None:
    everybody = {"grants": {"rest:anonymous": ("*:*", "admin:*")}}

    def put(name: str) -> int:
        return client_of(local).put(f"/v1/channels/{name}").status_code

    local = make_local(channels={"limit": 2}, auth=everybody)
    assert [put(name) for name in ("said", "empty", "third")] == [201, 201, 507]
    http = client_of(local)
    say(http, path="/v1/channels/said/messages")
    assert http.delete("/v1/channels/said").status_code == 204
    assert put("third") == 507, "what was said there is kept"
    assert http.delete("/v1/channels/empty").status_code == 204
    local = make_local(channels={"limit": 2}, auth=everybody)
    assert [put(name) for name in ("third", "fourth", "empty")] == [201, 507, 507]
    assert client_of(local).delete("/v1/channels/third").status_code == 204
    assert [put("empty"), put("third"), put("said")] == [201, 507, 201]
    shown = client_of(local).get("/v1/channels").json()["channels"]
    assert [row["name"] for row in shown] == ["empty", "said"]


def test_a_full_disk_is_503(local: Any, http: httpx.Client) -> None:
    assert http.get("/readyz").status_code == 200
    say(http)  # so that the sender and the channel are in the log
    local.settle()  # a write that ends takes back what follows
    local.gateway.log.congested = True
    response = http.post(LOBBY, content="1")
    problem(response, 503)
    assert response.headers["retry-after"] == "1"
    assert http.get("/readyz").status_code == 503
    assert http.get("/healthz").status_code == 200
    local.gateway.log.congested = False
    say(http)


def test_a_damaged_index_is_not_ready_until_it_is_made_anew(
    local: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, resumed = threading.Event(), threading.Event()
    local.call(lambda: local.gateway.index.submit(idle.set))
    assert idle.wait(PATIENCE)
    monkeypatch.setattr(index, "sleep", lambda _seconds: resumed.wait(PATIENCE))  # after a batch it would rebuild
    say(http)
    assert http.get("/readyz").status_code == 200
    local.gateway.index._tables.damage = "bad page"  # as a read that fails says
    response = http.get("/readyz")
    assert (response.status_code, "bad page" in response.json()["status"]) == (503, True)
    problem(http.get(LOBBY), 503)
    resumed.set()
    local.gateway.index.rebuild()
    assert http.get("/readyz").status_code == 200
    assert len(http.get(LOBBY).json()["messages"]) == 1


def test_a_disk_that_fails_is_named_and_who_waits_for_it_is_told(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, full = os.fdatasync, threading.Event()
    full.set()

    def fdatasync(file: int) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(log, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(log, "UNCERTAIN_SECONDS", 0.1)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    key = {"Idempotency-Key": "k"}
    assert "it may be accepted later" in problem(http.post(LOBBY, content="1", headers=key), 503)
    refused = problem(http.post(LOBBY, content="2"), 503)
    assert "No space left on device" in refused
    assert "nothing was accepted" in refused
    assert "No space left on device" in http.get("/readyz").json()["status"]
    assert "nothing was accepted" in problem(http.put("/v1/channels/new"), 503), "it is not waited for"
    assert "nothing was accepted" in problem(http.post(LOBBY, content=b"3\n4\n", headers=NDJSON), 503)
    full.clear()
    while http.get("/readyz").status_code == 503:
        time.sleep(0.02)
    assert http.post(LOBBY, content="1", headers=key).status_code == 201
    assert http.get("/v1/channels").json()["channels"][0]["name"] == "lobby"
    assert [message["content"] for message in http.get(LOBBY).json()["messages"]] == [1]


def test_lines_that_wait_for_a_disk_that_fails_are_answered_and_the_stream_ends(
    local: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(http)
    sync, full = os.fdatasync, threading.Event()

    def fdatasync(file: int) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(log, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(log, "UNCERTAIN_SECONDS", 0.5)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: 999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as sock, sock.makefile("rb") as answer:
        sock.sendall(head % LOBBY.encode() + b"1\n")
        first = next(line for line in answer if line.startswith(b"{"))
        full.set()
        sock.sendall(b"2\n3\n")
        while local.gateway.log.failing is None:
            time.sleep(0.01)
        sock.sendall(b"4\n")
        results = [orjson.loads(line) for line in answer if line.startswith(b"{")]  # until the stream ends
    full.clear()
    assert "sequence" in orjson.loads(first)
    assert [(result["line"], result["status"]) for result in results[:2]] == [(2, 503), (3, 503)]
    assert all("may be accepted later" in result["detail"] for result in results[:2])
    assert all("nothing was accepted" in result["detail"] for result in results[2:])
    while http.get("/readyz").status_code == 503:
        time.sleep(0.02)
    assert [message["content"] for message in http.get(LOBBY).json()["messages"]] == ["hi", 1, 2, 3]


def test_who_is_too_fast_is_told_when_to_come_back(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]
) -> None:
    http = client_of(make_local(limits={"rates": "on", "channel": {"rate": 0.01, "burst": 5}}))
    refused = next(r for r in (http.post(LOBBY, content="1") for _ in range(10)) if r.status_code != 201)
    problem(refused, 429)
    assert int(refused.headers["retry-after"]) >= 1
    http = client_of(make_local(limits={"rates": "on", "channel": {"rate": 50, "burst": 5}}))
    results = lines(http.post(LOBBY, content=b"1\n" * 40, headers=NDJSON))
    assert all("sequence" in result for result in results), "lines are slowed, not refused"
    assert len(results) == 40


def test_half_a_body_is_not_waited_for_for_ever(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", local.port), 10) as slow:
        slow.sendall(b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[1,")
        with slow.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"408"
            assert b"connection: close" in answer.read().lower()


def test_connections_without_a_session_are_counted_too(make_local: Callable[..., Any]) -> None:
    local = make_local(limits={"rates": "off", "connections": 9, "connections_per_address": 2})

    def visit() -> socket.socket:
        return socket.create_connection(("127.0.0.1", local.port), 10)

    def ask(visitor: socket.socket) -> bytes:
        visitor.sendall(b"GET /v1/channels HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = visitor.recv(1 << 16)
        while b"]" not in text:  # head and body may come by themselves
            text += visitor.recv(1 << 16)
        visitor.sendall(b"\r\n")  # who waits in silence would give way
        return text

    with visit() as first, visit() as second:
        assert ask(first).startswith(b"HTTP/1.1 200")
        assert ask(second).startswith(b"HTTP/1.1 200")
        while local.gateway.admission._idle:
            time.sleep(0.01)
        with visit() as third, third.makefile("rb") as answer:
            text = answer.read()
            assert text.startswith(b"HTTP/1.1 503")
            assert b"limits.connections_per_address" in text
        assert ask(first).startswith(b"HTTP/1.1 200"), "who is in stays in"
    for _ in range(1_000):  # the ends are seen soon
        if not local.gateway.admission._http_connections:
            break
        time.sleep(0.01)
    with visit() as later:
        assert ask(later).startswith(b"HTTP/1.1 200")


def test_a_page_whose_name_was_made_to_lead_here_is_refused(local: Any, client_of: Callable[..., httpx.Client]) -> None:
    rebound = client_of(local, Host="evil.example")
    assert "auth.origins" in problem(rebound.get("/v1/channels"), 403)
    assert "auth.origins" in problem(rebound.post(LOBBY, content="1", headers={"Origin": "http://evil.example"}), 403)


def test_pages_of_other_origins_are_refused(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]
) -> None:
    local = make_local(auth={"origins": ("https://good.example",)})
    for origin, welcome in [
        ("https://evil.example", False),
        ("https://good.example", True),
        ("http://localhost:3000", True),
        (local.url, True),
        ("null", False),
    ]:
        http = client_of(local, Origin=origin)
        if welcome:
            say(http)
        else:
            assert "auth.origins" in problem(http.post(LOBBY, content="1"), 403)
            problem(http.get("/v1/channels/lobby/events"), 403)


CHECKED = [
    ("publish", "POST", "/messages"),
    ("publish", "PUT", ""),
    ("history", "GET", "/messages"),
    ("history", "GET", "/messages/x"),
    ("subscribe", "GET", "/peers"),
    ("subscribe", "GET", ""),
    ("direct", "POST", "/peers/7/messages"),
    ("admin", "DELETE", ""),
]


@pytest.mark.slow
def test_each_verb_and_channel_needs_its_right(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client], tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "data/keys/api-keys.json")
    verbs = ("subscribe", "publish", "direct", "history", "admin")
    secrets = {verb: keys.add(verb, [f"{verb}:lobby"]) for verb in verbs}
    everything = keys.add("root", [f"{verb}:*" for verb in verbs])
    local = make_local()
    root = client_of(local, everything)
    say(root)
    say(root, path="/v1/channels/secret/messages")
    for needed, method, path in CHECKED:
        assert client_of(local).request(method, f"/v1/channels/lobby{path}", content="1").status_code == 401
        assert client_of(local, "wrong").request(method, f"/v1/channels/lobby{path}", content="1").status_code == 401
        for verb, secret in secrets.items():
            http = client_of(local, secret)
            detail = problem(http.request(method, f"/v1/channels/secret{path}", content="1"), 403)
            assert f"{needed}:secret" in detail, "it names the right"
            allowed = http.request(method, f"/v1/channels/lobby{path}", content="1")
            assert (allowed.status_code != 403) == (verb == needed)
    for path in ("/v1/log", "/v1/stats", "/v1/peers/0"):
        problem(client_of(local, secrets["admin"]).get(path), 403)
        assert root.get(path).status_code in (200, 404)
    problem(client_of(local, secrets["publish"]).get("/v1/channels/lobby/events"), 403)
    say(root)
    listed = client_of(local, secrets["history"]).get("/v1/channels").json()["channels"]
    assert [channel["name"] for channel in listed] == ["lobby"]
    assert "right to subscribe" in problem(client_of(local, secrets["admin"]).get("/v1/channels"), 403)
    assert "right to subscribe" in problem(client_of(local).get("/v1/channels"), 401)
    problem(client_of(local, "wrong").get("/v1/channels"), 401)
    challenge = client_of(local).post(LOBBY, content="1")
    assert challenge.headers["www-authenticate"].startswith("Bearer")


# The gateway


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/channels/lobby"), ("GET", "/v1/log")])
def test_without_keys_nobody_administers(http: httpx.Client, method: str, path: str) -> None:
    say(http)
    detail = problem(http.request(method, path), 403)
    assert "admin" in detail
    assert http.get("/v1/channels/lobby").status_code == 200


def test_what_there_is_not_cannot_be_closed(operator: httpx.Client) -> None:
    problem(operator.delete("/v1/channels/nobody"), 404)


def test_the_log_is_shown_as_it_is_on_disk(operator: httpx.Client, tmp_path: Path) -> None:
    http = operator
    said = lines(http.post(LOBBY, content=b"1\n" * 600, headers=NDJSON))
    (segment,) = (tmp_path / "data/log").glob(".open-*.jsonl")
    shown = http.get("/v1/log").content
    assert shown == segment.read_bytes()[: len(shown)]
    assert len(shown.splitlines()) == said[-1]["sequence"]
    some = http.get(f"/v1/log?after={said[99]['sequence']}&limit=300").content.splitlines()
    assert [json.loads(line)["seq"] for line in some] == [result["sequence"] for result in said[100:400]]
    assert http.get(f"/v1/log?after={said[-1]['sequence']}").content == b""


def test_what_is_counted(http: httpx.Client) -> None:
    taken = say(http)
    http.post(LOBBY, content="{")
    stats = http.get("/v1/stats").json()
    assert stats["protocols"]["rest"]["messages"] == 1
    assert stats["protocols"]["rest"]["refused"] == 1
    assert stats["sequence"] == taken["sequence"]
    metrics = http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'trellis_messages_total{protocol="rest"} 1.0' in metrics.text
    assert 'trellis_refused_total{protocol="rest",reason="400"} 1.0' in metrics.text
    assert int(float(metrics.text.partition("\ntrellis_tasks ")[2].partition("\n")[0])) > 0
    assert [row["name"] for row in http.get("/v1/protocols").json()["protocols"]] == ["rest"]
    assert http.get("/").json()["api"] == "/docs"


def test_every_route_is_described(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, row in described.items() for method in row} == {
        (method, path) for method, path, *_ in ROUTES
    }
    for method, path, _, status, _, more, *_ in ROUTES:
        operation = described[path][method.lower()]
        assert len(operation["summary"]) > 10
        assert str(status) in operation["responses"]
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert {part[1:-1] for part in path.split("/") if part.startswith("{")} <= names
        assert all(parameter.get("description") for parameter in operation.get("parameters", []))
        if path.startswith("/v1/"):
            assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert ("requestBody" in operation) == ("requestBody" in more)
    assert http.get("/docs").status_code == 200


# The worst


@pytest.mark.parametrize("seed", range(3))
def test_what_was_accepted_survives_a_kill(
    make_process: Callable[..., Any], client_of: Callable[..., httpx.Client], seed: int
) -> None:
    process = make_process()
    accepted: list[dict[str, Any]] = []
    enough, wanted = threading.Event(), random.Random(seed).randrange(500, 3_000)

    def load(who: int) -> None:
        with suppress(OSError, ValueError), Wire(process) as wire:  # until the gateway is gone
            sent = 0
            while True:
                wire.send(b"".join(b'{"who":%d,"n":%d}\n' % (who, sent + n) for n in range(50)))
                sent += 50
                accepted.extend(wire.receive())
                if len(accepted) > wanted:
                    enough.set()

    threads = [threading.Thread(target=load, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    assert enough.wait(PATIENCE)
    process.kill()
    for thread in threads:
        thread.join(PATIENCE)
    http = client_of(make_process())
    found: dict[int, Any] = {}
    url = f"{LOBBY}?limit=256"
    while url:
        page = jsontext.loads(http.get(url).content)
        found |= {message["sequence"]: message for message in page["messages"]}
        url = page["next"]
    assert len(accepted) > wanted
    for result in accepted:
        assert found[result["sequence"]]["id"] == result["id"]
    for who in range(3):
        order = [message["content"]["n"] for message in found.values() if message["content"]["who"] == who]
        assert order == list(range(len(order))), "each sender's messages in order, none missing in between"
    assert http.get(f"{LOBBY}/{accepted[-1]['id']}").json()["sequence"] == accepted[-1]["sequence"]
    assert say(http)["sequence"] > max(found)
