"""A publish that is answered without an application is answered as by the application, in every respect."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.access.auth import KeyFile
from gateway.http.bodies import SHORT_BODY
from gateway.http.direct import publish_segment
from gateway.shells import uvicorn_direct

PATIENCE = 60.0
DIRECT, ASGI = "direct", "asgi"
VARIES = re.compile(rb'("id":"[^"]*"|"sequence":\d+|"timestamp":\d+)')  # in the answer to what was accepted


KINDS = (
    *(None, "", "application/json", "Application/JSON; a=b", "application/json; charset=x", "image/png"),
    *("text/plain", "text/plain; charset=utf-16", "application/merge-patch+json", "application/x-www-form-urlencoded"),
)
BODIES = (
    *(b'{"text":"hi"}', b'"hi"', b"hello", b"", b" [1,\n2]\r\n", b"{", b"\xff", b"a=b", b"1e999", b'"\\ud800"'),
    *(b'{"inReplyTo":"no such id"}', b"[" * 300, b'"' + b"x" * 1000 + b'"', b'"' + b"x" * SHORT_BODY + b'"'),
)


class Asked(NamedTuple):
    segment: str
    kind: str | None
    body: bytes
    key: str | None
    again: str | None  # the Idempotency-Key
    more: tuple[tuple[str, str], ...]


asked = st.builds(
    Asked,
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

    def ask(self, way: str, each: Asked) -> tuple[Any, ...]:
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

    def segment(scope: Any, size: int) -> str | None:
        found = None if (b"x-way", ASGI.encode()) in scope["headers"] else publish_segment(scope, size)
        taken.append(ASGI if found is None else DIRECT)
        return found

    monkeypatch.setattr(uvicorn_direct, "publish_segment", segment)
    return Both(make_local(), keys, taken)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(asked, min_size=1, max_size=5))
def test_property_both_ways_agree(both: Both, requests: list[Asked]) -> None:
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
    each = Asked("lobby", "application/json", b"1", "ada", None, ())
    assert both.ask(DIRECT, each)[0] == both.ask(ASGI, each)[0] == 201
    assert both.ask(DIRECT, each._replace(body=b'"' + b"x" * SHORT_BODY + b'"'))[0] == 201
    assert both.taken == [DIRECT, ASGI, ASGI]


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


def test_a_body_that_comes_late_and_a_client_that_leaves_harm_nobody(local: Any) -> None:
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
