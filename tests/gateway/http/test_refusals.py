"""REST refuses requests for want of rights, by limits, when the disk fails, and by origin."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.access.authorization import KeyFile
from gateway.http import bodies, media, persistent
from gateway.storage import index, log
from tests.gateway.http.rest_requests import LOBBY, NDJSON, PATIENCE, lines, problem, say


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
def test_malformed_json_is_refused(http: httpx.Client, body: bytes) -> None:
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


def test_readiness_fails_until_a_damaged_index_is_rebuilt(
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


def test_waiting_requests_are_refused_with_the_failure_of_the_disk(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.put("/v1/channels/settled").status_code == 201, "what the start writes is on disk as well"
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
        results = list[Any]()
        with suppress(ConnectionError):  # on a slow machine the stream may have ended
            sock.sendall(b"4\n")
        with suppress(ConnectionError):
            lines = takewhile(lambda line: line != b"0\r\n", answer)  # until the stream ends
            results.extend(orjson.loads(line) for line in lines if line.startswith(b"{"))
    full.clear()
    assert "sequence" in orjson.loads(first)
    assert [(result["line"], result["status"]) for result in results[:2]] == [(2, 503), (3, 503)]
    assert all("may be accepted later" in result["detail"] for result in results[:2])
    assert all("nothing was accepted" in result["detail"] for result in results[2:])
    while http.get("/readyz").status_code == 503:
        time.sleep(0.02)
    assert [message["content"] for message in http.get(LOBBY).json()["messages"]] == ["hi", 1, 2, 3]


def test_a_refusal_over_the_rate_has_retry_after(
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


def test_an_unfinished_body_times_out(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(persistent, "DISCARD_SECONDS", 0.2)
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


def test_dns_rebinding_is_refused(local: Any, client_of: Callable[..., httpx.Client]) -> None:
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
