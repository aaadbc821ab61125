"""A publish that is answered without the ASGI application gets the same answer as with it."""

from __future__ import annotations

import fcntl
import json
import math
import re
import socket
import sys
import termios
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.access.authorization import KeyFile
from gateway.core.errors import Unavailable
from gateway.http.bodies import SHORT_BODY
from gateway.http.fast_publish import Post, direct_post
from gateway.shells import uvicorn_fast_publish
from tests.waiting import until

PATIENCE = 60.0
DIRECT, ASGI = "direct", "asgi"
HEAD = re.compile(rb"(?is).*?\r\ncontent-length: (\d+)\r\n(?:.*?\r\n)??\r\n")  # of a response
VARIES = re.compile(rb'("id":"[^"]*"|"sequence":\d+|"timestamp":\d+)')  # in the answer to what was accepted


KINDS = (
    *(None, "", "application/json", "Application/JSON; a=b", "application/json; charset=x", "image/png"),
    *("text/plain", "text/plain; charset=utf-16", "application/merge-patch+json", "application/x-www-form-urlencoded"),
)
BODIES = (
    *(b'{"text":"hi"}', b'"hi"', b"hello", b"", b" [1,\n2]\r\n", b"{", b"\xff", b"a=b", b"1e999", b'"\\ud800"'),
    *(b'{"inReplyTo":"no such id"}', b"[" * 300, b'"' + b"x" * 1000 + b'"', b'"' + b"x" * SHORT_BODY + b'"'),
)


class DirectRequest(NamedTuple):
    segment: str
    kind: str | None
    body: bytes
    key: str | None
    again: str | None  # the Idempotency-Key
    more: tuple[tuple[str, str], ...]


asked = st.builds(
    DirectRequest,
    st.sampled_from(["lobby", "a%2Fb", "%C3%A4", "%FF", "%", "a%00b", "%2F@x", "x" * 300, "closed", "$gateway"]),
    st.sampled_from(KINDS),
    st.sampled_from(BODIES),
    st.sampled_from(["ada", "ada", "guest", "wrong", None]),
    st.sampled_from([None, None, "one", "x" * 600]),
    st.sampled_from([(), (), (("Connection", "close"),), (("Origin", "http://else.example"),), (("X-A", "b"),)]),
)


class OneWrite(HTTPConnection):
    """A connection that sends the head of a request and its body together, so that they arrive in one read."""

    unsent = b""

    def send(self, data: Any) -> None:
        """Keep *data* until the response is asked for."""
        self.unsent += data

    def getresponse(self) -> HTTPResponse:
        """Send the request."""
        super().send(self.unsent)
        return super().getresponse()


class Both:
    """One gateway, asked in both ways."""

    def __init__(self, local: Any, keys: dict[str, str], taken: list[str]) -> None:
        self.local, self.keys, self.taken = local, keys, taken

    def ask(self, way: str, each: DirectRequest) -> tuple[Any, ...]:
        """What can be known of the answer, without what differs each time."""
        connection = OneWrite("127.0.0.1", self.local.port, timeout=PATIENCE)
        connection.putrequest("POST", f"/v1/channels/{each.segment}/messages?x=1")
        connection.putheader("X-Way", way)
        connection.putheader("Content-Length", str(len(each.body)))
        if each.kind is not None:
            connection.putheader("Content-Type", each.kind)
        if each.key is not None:
            connection.putheader("Authorization", f"Bearer {self.keys.get(each.key, 'wrong')}")
        if each.again is not None:
            connection.putheader("Idempotency-Key", f"{way} {each.again}")
        for name, value in each.more:
            connection.putheader(name, value)
        connection.endheaders(each.body)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders() if name.lower() != "date"}
        body = response.read()
        connection.close()
        assert int(headers.pop("content-length")) == len(body)  # keys of requests, which it may name, differ by the way
        if response.status == 201:
            body = VARIES.sub(b"", body)
        return response.status, headers, body.replace(way.encode(), b"WAY").replace(b"asgi", b"WAY")


@pytest.fixture
def both(make_local: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    file = KeyFile(tmp_path / "data/keys/api-keys.json")
    keys = {"ada": file.add("ada"), "guest": file.add("guest", rights=["publish:lobby"])}
    taken: list[str] = []

    def segment(scope: Any, size: int) -> Post | None:
        found = None if (b"x-way", ASGI.encode()) in scope["headers"] else direct_post(scope, size)
        taken.append(ASGI if found is None else DIRECT)
        return found

    monkeypatch.setattr(uvicorn_fast_publish, "direct_post", segment)
    return Both(make_local(), keys, taken)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(asked, min_size=1, max_size=5))
def test_property_direct_and_asgi_answers_agree(both: Both, requests: list[DirectRequest]) -> None:
    gateway = both.local.gateway
    for each in requests:
        effects = []
        answers = []
        for way in (DIRECT, ASGI):
            seq, refused = gateway.log.next_seq, gateway.metrics.counts["refused"].copy()
            answers.append(both.ask(way, each))
            said = [gateway.index.entry(number) for number in range(seq, gateway.log.next_seq)]
            new = gateway.metrics.counts["refused"] - refused
            messages = [
                (entry.channel, entry.sender.number, entry.sender.identity, entry.protocol, entry.content, entry.parent)
                for entry in said
                if hasattr(entry, "content")
            ]
            effects.append((messages, new))
        assert answers[0] == answers[1]
        assert effects[0] == effects[1]


def test_short_publishes_are_answered_directly(both: Both) -> None:
    """Otherwise the property compares one way with itself."""
    each = DirectRequest("lobby", "application/json", b"1", "ada", None, ())
    assert both.ask(DIRECT, each)[0] == both.ask(ASGI, each)[0] == 201
    assert both.taken == [DIRECT, ASGI]
    assert both.ask(DIRECT, each._replace(body=b'"' + b"x" * SHORT_BODY + b'"'))[0] == 201
    assert DIRECT not in both.taken[2:]  # a body that arrives in two reads is not even looked at


def test_pipelined_publishes_are_answered_in_order(local: Any) -> None:
    """The bodies are in one piece with the heads, and cut in two."""
    bodies = [json.dumps({"n": n, "text": "x" * (n * 40)}).encode() for n in range(30)]
    head = b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    data = b"".join(head % len(body) + body for body in bodies) + b"GET /healthz HTTP/1.0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as peer:
        for at in range(0, len(data), 5_000):
            peer.sendall(data[at : at + 5_000])
        answer = b""
        while more := peer.recv(1 << 16):
            answer += more
    sequences = [int(each) for each in re.findall(rb'"sequence":(\d+)', answer)]
    assert len(sequences) == 30
    assert sequences == sorted(sequences)
    assert answer.count(b"HTTP/1.1 201 Created") == 30
    assert answer.count(b"HTTP/1.1 200 OK") == 1


def test_late_bodies_and_departed_clients_disturb_no_other_request(local: Any) -> None:
    head = b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as gone:
        gone.sendall(head + b'"hi"')
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as peer:
        peer.sendall(head)
        with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as other:
            other.sendall(head + b'"hi"')
            assert other.recv(1 << 12).startswith(b"HTTP/1.1 201")
        peer.sendall(b'"ho"')
        assert peer.recv(1 << 12).startswith(b"HTTP/1.1 201")


@pytest.fixture
def idle(local: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A gateway on which no connection is busy, so that none waits for a turn of its own."""
    monkeypatch.setattr("gateway.shells.turns.ALLOWANCE_SECONDS", math.inf)
    return local


def unacknowledged(peer: socket.socket) -> int:
    """How many bytes that were sent the other end's kernel does not have yet, as far as this one knows."""
    return int.from_bytes(fcntl.ioctl(peer, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def response(peer: socket.socket) -> bytes:
    """A whole response: its head and its body may come one after the other."""
    data = b""
    while not (head := HEAD.match(data)) or len(data) < head.end() + int(head[1]):
        data += peer.recv(1 << 12) or pytest.fail(f"the gateway hung up after {data!r}")
    return data


def ask_in_one_turn(local: Any, bodies: list[bytes], more: bytes = b"") -> list[bytes]:
    """The responses to requests that come on connections of their own, and are read in one turn of the loop."""
    peers = [socket.create_connection(("127.0.0.1", local.port), PATIENCE) for _ in bodies]
    head = b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n"
    for peer in peers:  # so that the gateway has accepted all of them
        peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in response(peer)
    held, sent = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        sent.wait(PATIENCE)

    local.call(hold)
    assert held.wait(PATIENCE)
    for peer, body in zip(peers, bodies, strict=True):
        peer.sendall(head % (more, len(body)) + body)
    until(lambda: not any(map(unacknowledged, peers)))  # a busy kernel delivers later
    sent.set()
    responses = list(map(response, peers))
    for peer in peers:
        peer.close()
    return responses


def test_requests_of_one_turn_are_published_together(idle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    submit = idle.gateway.bus.submit

    def submitted(run: Any, origins: Any) -> None:
        runs.append(len(run))
        submit(run, origins)

    monkeypatch.setattr(idle.gateway.bus, "submit", submitted)
    bodies = [b"%d" % n for n in range(8)]
    answers = ask_in_one_turn(idle, bodies)
    assert all(answer.startswith(b"HTTP/1.1 201") for answer in answers)
    assert runs == [8]
    kept = {entry.seq: entry.content for entry in idle.gateway.index.history("lobby")}
    for body, answer in zip(bodies, answers, strict=True):
        assert kept[int(re.findall(rb'"sequence":(\d+)', answer)[0])] == body


def test_requests_with_one_key_in_one_turn_publish_once(idle: Any) -> None:
    same = ask_in_one_turn(idle, [b"1"] * 3, b"Idempotency-Key: one\r\n")
    assert len({re.findall(rb'"id":"([^"]+)"', answer)[0] for answer in same}) == 1
    other = ask_in_one_turn(idle, [b"2", b"3"], b"Idempotency-Key: two\r\n")
    assert sorted(answer[9:12] for answer in other) == [b"201", b"422"]
    assert len(list(idle.gateway.index.history("lobby"))) == 2


def test_a_failure_at_the_end_of_the_turn_is_answered(idle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = idle.gateway.bus.submit

    def picky(run: Any, origins: Any) -> None:
        contents = [message.content for message in run]
        if b"2" in contents:
            raise Unavailable("not now")
        if b"4" in contents:
            raise KeyError
        submit(run, origins)

    monkeypatch.setattr(idle.gateway.bus, "submit", picky)
    assert [answer[9:12] for answer in ask_in_one_turn(idle, [b"1", b"2", b"3"])] == [b"201", b"503", b"201"]
    assert [answer[9:12] for answer in ask_in_one_turn(idle, [b"4", b"5"])] == [b"500", b"500"]
    assert not idle.gateway.bus.acceptance.untaken
