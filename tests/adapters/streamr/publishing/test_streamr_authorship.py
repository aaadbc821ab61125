"""A connection that delivers a message signed by another author is not identified as that author."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.adapter import ConnectionRequest
from gateway.core.message import Message


@pytest.fixture(params=["frame", "run", "node"])
def carry(request: pytest.FixtureRequest, broker: Any) -> Callable[..., Any]:
    """A new connection that has brought the messages *rows*: one by one, at once, or wrapped as a node."""

    def carry(*rows: Any) -> Any:
        frames = [[2, 8, f"r{number}", row, None] for number, row in enumerate(rows)]
        session = broker.open()
        if request.param == "node":
            session = broker.adapter.accept(node(session))
            frames = [["4.4.3", 4, "n", frame] for frame in frames]
        session.receive_all([json.dumps(frame, separators=(",", ":")).encode() for frame in frames])
        assert broker.frames(session) == []
        return session

    return carry


def node(session: Any) -> ConnectionRequest:
    """A handshake on the path of the network layer."""
    return ConnectionRequest(session.principal, "/network", {})


def direct(broker: Any, number: int) -> int:
    """To how many connections a direct message to the peer with *number* goes."""
    return int(broker.bus.direct(Message("s", broker.toy().peer, "toy", b'"psst"'), number))


def ask(broker: Any, session: Any, frame: list[Any]) -> Any:
    """The answer to *frame*, out of its wrapper."""
    wrapped = type(session).__name__ == "NetworkSession"
    (answer,) = broker.ask(session, ["4.4.3", 4, "n", frame] if wrapped else frame)
    return answer[3] if wrapped else answer


def test_a_replayed_message_does_not_identify_its_connection(
    broker: Any, carry: Callable[..., Any], alice: Any
) -> None:
    thief = carry(alice.message("s", 1, broker.clock()), alice.message("s", 2, broker.clock(), 1))
    assert thief.identity is None
    assert not thief.link
    assert thief.who == thief.peer
    assert [message.sender.identity for message in broker.logged()] == [alice.address] * 2


def test_direct_messages_to_the_author_do_not_reach_the_replaying_connection(
    broker: Any, carry: Callable[..., Any], alice: Any
) -> None:
    thief = carry(alice.message("s", 1, broker.clock()))
    assert ask(broker, thief, [2, 9, "r", "s", 0, None])[1] == 2
    author = broker.bus.peers.find("streamr", alice.address)
    assert direct(broker, author.number) == 0
    assert direct(broker, thief.peer.number) == 1


def test_the_inbox_and_the_key_exchange_of_the_author_stay_closed(
    broker: Any, carry: Callable[..., Any], alice: Any
) -> None:
    thief = carry(alice.message("s", 1, broker.clock()))
    author = broker.bus.peers.find("streamr", alice.address)
    for stream in (f"s/@{alice.address}", f"s/@{author.number}", f"SYSTEM/keyexchange/{alice.address}"):
        assert ask(broker, thief, [2, 9, "r", stream, 0, None])[4] == "PERMISSION_DENIED", stream


def test_unsigned_messages_do_not_become_the_authors(
    broker: Any, carry: Callable[..., Any], alice: Any, unsigned: Any
) -> None:
    thief = carry(alice.message("s", 1, broker.clock()))
    row = unsigned("s", 2, broker.clock(), 1, publisher=alice.address)
    assert ask(broker, thief, [2, 8, "r", row, None])[4] == "REQUEST_FAILED"


def test_others_see_a_number_there_and_not_the_author(broker: Any, carry: Callable[..., Any], alice: Any) -> None:
    thief = carry(alice.message("s", 1, broker.clock()))
    assert ask(broker, thief, [2, 9, "r", "s", 0, None])[1] == 2
    assert broker.bus.peers_in("s") == [thief.peer]


def test_the_rights_of_the_author_cover_only_the_signed_message(make_broker: Callable[..., Any], alice: Any) -> None:
    broker = make_broker(grants={f"streamr:{alice.address}": ("*:s",)})
    thief, toy = broker.open(), broker.toy("s")
    assert broker.ask(thief, [2, 8, "r", alice.message("s", 1, broker.clock()), None]) == []
    assert b"1" in toy.take()
    refused = [
        [2, 9, "r", "s", 0, None],
        [2, 11, "r", "s", 0, 1, None],
        [2, 9, "r", f"SYSTEM/keyexchange/{alice.address}", 0, None],
        [2, 9, "r", f"s/@{thief.peer.number}", 0, None],
    ]
    for frame in refused:
        assert broker.ask(thief, frame)[0][4] == "PERMISSION_DENIED", frame


def test_an_author_is_paced_on_every_connection_that_carries_its_messages(
    broker: Any, carry: Callable[..., Any], alice: Any
) -> None:
    asked: list[int] = []

    def throttle(_principal: Any, peer: Any, _channel: str) -> float:
        asked.append(peer.number)
        return 0.0

    broker.bus.throttle = throttle
    thief = carry(alice.message("s", 1, broker.clock()), alice.message("s", 2, broker.clock(), 1))
    author = broker.bus.peers.find("streamr", alice.address)
    assert asked.count(thief.peer.number) >= 2
    assert asked.count(author.number) == 2
    forged = alice.message("s", 3, broker.clock(), 2)
    forged[7] = "4"
    asked.clear()
    broker.ask(broker.open(), [2, 8, "r", forged, None])
    assert author.number not in asked, "nobody uses up what another may say"


def test_an_author_over_its_rate_is_refused_on_every_connection(broker: Any, alice: Any, bob: Any) -> None:
    first = broker.open()
    broker.ask(first, [2, 8, "r", alice.message("s", 1, broker.clock()), None])
    author = broker.bus.peers.find("streamr", alice.address)
    broker.bus.throttle = lambda _principal, peer, _channel: float(peer.number == author.number)
    (answer,) = broker.ask(broker.open(), [2, 8, "r", alice.message("s", 2, broker.clock(), 1), None])
    assert "too many requests" in answer[3]
    assert broker.ask(broker.open(), [2, 8, "r", bob.message("s", 2, broker.clock(), 1), None]) == []
