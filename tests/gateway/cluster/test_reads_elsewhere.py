"""A gateway without the turn answers reads, and queues requests that may log something in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from gateway.core.session import Session
from gateway.http.websocket.session import WebSocketService
from gateway.runtime import Gateway
from tests.faults.harness.connections import unsigned

from .conftest import Pair

COMMUNITY = "COMMUNITY"  # stands for the community of the channel


class ReadRequests(NamedTuple):
    """How a protocol reads (requests, with what their answers have), and how it publishes."""

    path: str
    query: dict[str, str]
    reads: dict[str, bytes]
    publish: str


def streamr(*frame: Any) -> str:
    return json.dumps([2, *frame])


PROTOCOLS = {
    "rest": ReadRequests(
        "/v1/ws",
        {},
        {
            '{"type":"subscribe","request":1,"channel":"lobby"}': b'"type":"subscribed"',
            '{"type":"history","request":2,"channel":"lobby"}': b'"type":"history"',
            '{"type":"presence","request":3,"channel":"lobby"}': b'"type":"presence"',
        },
        '{"type":"publish","channel":"lobby","content":"mine"}',
    ),
    "topic_relay": ReadRequests(
        "/relay",
        {},
        {'{"type":2,"topic":"lobby"}': b'"peers":', '{"type":5,"topic":"lobby"}': b'"info":'},
        '{"type":6,"topic":"lobby","content":"mine"}',
    ),
    "streamr": ReadRequests(
        "/api/v1/ws",
        {"controlLayerVersion": "2", "messageLayerVersion": "32"},
        {
            streamr(9, "s", "lobby", 0, None): b'[2,2,"s"',
            streamr(11, "r", "lobby", 0, 9, None): b'[2,5,"r"',
            streamr(10, "u", "lobby", 0): b'[2,3,"u"',
        },
        streamr(8, "p", unsigned("lobby", (1_795_240_000_000, 0), "chain", '{"content":"mine"}'), None),
    ),
    "sprout": ReadRequests(
        "",
        {},
        {
            "version 0 0.0\nlist 1 1 9\n": b"response 1 ",
            f"query 2 1\n{COMMUNITY}\nsubscribe 3 {COMMUNITY}\n": b"status 3 0",
        },
        "announce 9 0\n",
    ),
}


def session_of(gateway: Gateway, name: str) -> Session:
    """A new connection to *gateway*."""
    acceptor: Any = {each.name: each for each in gateway.adapters}.get(name) or WebSocketService(gateway)
    protocol = PROTOCOLS[name]
    session = gateway.admission.admit(acceptor, "127.0.0.1", protocol.path, protocol.query)
    assert isinstance(session, Session)
    return session


class WaitingClient:
    """A client of the gateway *at* a place of *pair*, which wants the turn whenever *wants* grows."""

    def __init__(self, pair: Pair, at: int, name: str) -> None:
        self.pair, self.node = pair, pair.nodes[at]
        gateway = self.node.instance.gateway
        self.session = session_of(gateway, name)
        self._community = gateway.channels.address("sprout", "lobby") or ""
        self.wants = 0
        tell: Callable[[str, int], None] = self.node.transport.want

        def want(member: str, batches: int) -> None:
            self.wants += 1
            tell(member, batches)

        self.node.transport.want = want  # type: ignore[method-assign]

    def ask(self, request: str) -> bytes:
        """Send *request*; what comes back while no turn changes."""
        self.session.receive_data(request.replace(COMMUNITY, self._community).encode())
        return self.heard()

    def heard(self) -> bytes:
        sent = b""
        for _ in range(5):
            self.pair.settle()
            while data := self.session.data_to_send():
                sent += b"\n".join(data)
        return sent


@pytest.mark.parametrize("name", PROTOCOLS)
def test_reads_are_answered_and_publishing_waits_for_the_turn(pair: Pair, name: str) -> None:
    first, here = pair.nodes
    first.catch_up()
    pair.settle()
    pair.enter(0, "rest").publish("lobby", "known")
    pair.settle()
    first.instance.settle(synced=True)
    first.turn.pinned = True  # it keeps the turn
    pair.settle()
    client, protocol = WaitingClient(pair, 1, name), PROTOCOLS[name]
    for request, answer in protocol.reads.items():
        assert answer in client.ask(request), request
    assert client.wants == 0, "nothing of that asks for the turn"

    before = here.instance.gateway.log.next_seq
    client.ask(protocol.publish)
    assert client.wants
    request, answer = next(iter(protocol.reads.items()))
    assert client.ask(request) == b"", "what comes behind a message waits with it"
    assert here.instance.gateway.log.next_seq == before

    first.turn.pinned = False
    here.turn.tick()  # it says again that it wants the turn
    here.catch_up()
    here.instance.settle(synced=True)
    heard = client.heard()
    assert heard
    assert client.session.ready
    client.session.receive_eof()


def test_acknowledgements_of_an_arbor_listener_ask_for_no_turn(pair: Pair) -> None:
    first, here = pair.nodes
    first.catch_up()
    pair.settle()
    client = WaitingClient(pair, 1, "sprout")
    client.ask(f"subscribe 0 {COMMUNITY}\n")
    first.turn.pinned = True
    client.wants = 0
    client.ask("status 0 0\nstatus 1 0\n")
    assert client.wants == 0
    assert here.turn.acting is False
    client.session.receive_eof()
    first.turn.pinned = False
