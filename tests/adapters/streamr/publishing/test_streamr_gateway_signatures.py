"""A message signed by the gateway for a foreign sender is neither published again nor proof of its sender."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from adapters.streamr.crypto.signing import sign_message
from adapters.streamr.wire.message import parse_message
from gateway.adapter import ConnectionRequest
from gateway.core.frames import payload
from gateway.core.message import LATE_AFTER, Message, Peer
from gateway.core.principal import Principal

NOT_PUBLISHED = "The publisher is an address of the gateway, which did not publish this message here"
OTHER = "The id of this message belongs to one with other content"
Door = Callable[[Any, list[Any]], str | None]
TOY = Peer(7, "toy", "somebody")


@pytest.fixture(params=["/api/v1/ws", "/network", "data"])
def door(request: pytest.FixtureRequest, make_caller: Callable[[Any], Any]) -> Door:
    """Says a message, and returns the error."""

    def by_socket(broker: Any, row: list[Any]) -> str | None:
        session = broker.adapter.accept(ConnectionRequest(Principal("streamr:anonymous"), request.param, {}))
        control = [2, 8, "p", row, None]
        frame = control if request.param != "/network" else ["4.4.3", 4, "node", control]
        session.receive_data(json.dumps(frame).encode())
        answers = [json.loads(payload(frame)) for frame in session.data_to_send()]
        assert session.identity is None, "whose address that is nobody else can be"
        assert not session.link
        if not answers:
            return None
        [answer] = answers
        answer = answer if request.param != "/network" else answer[3]
        assert answer[1] == 7
        return str(answer[3]).removeprefix("Publish request failed: ")

    def by_rest(broker: Any, row: list[Any]) -> str | None:
        names = ("ts", "seq", "address", "msgChainId", "signatureType", "signature")
        query = dict(zip(names, (*row[1][2:], *row[9:11]), strict=True))
        query |= {} if row[2] is None else dict(zip(("prev_ts", "prev_seq"), row[2], strict=True))
        answer = make_caller(broker)("POST", f"/streams/{row[1][0]}/data?{urlencode(query)}", content=row[7])
        return None if answer.status_code == 200 else str(answer.json()["error"])

    return by_rest if request.param == "data" else by_socket


def rows(broker: Any, session: Any) -> list[Any]:
    return [frame[3] for frame in broker.frames(session)]


def resent(broker: Any, stream: str = "s") -> list[Any]:
    return [frame[3] for frame in broker.ask(broker.open(), [2, 11, "r", stream, 0, 99, None]) if frame[1] == 1]


def test_a_republished_bridged_message_is_ignored_as_a_copy(broker: Any, door: Door) -> None:
    reader, toy = broker.listener("s"), broker.toy("s")
    for fields in ({}, {}, {"timestamp": broker.clock() - LATE_AFTER - 1}):
        broker.say("s", {"n": 1}, sender=TOY, **fields)
    shown, before = rows(broker, reader), resent(broker)
    toy.take()
    assert len(shown) == len(before) == 3
    for row in shown:
        assert door(broker, row) is None
    assert toy.take() == []
    assert rows(broker, reader) == []
    assert resent(broker) == before


def test_a_republished_bridged_message_is_a_copy_after_a_restart(make_broker: Callable[..., Any], door: Door) -> None:
    first = make_broker()
    reader = first.listener("s")
    first.say("s", {"n": 1}, sender=TOY)
    [row] = rows(first, reader)
    first.core.settle()
    second = make_broker()
    toy = second.toy("s")
    second.clock.now = first.clock.now + 1_000
    assert door(second, row) is None
    assert toy.take() == []
    assert resent(second) == [row]


def test_a_bridged_message_split_into_other_fields_is_refused(make_broker: Callable[..., Any], door: Door) -> None:
    """The signature has nothing between the name of the chain and the content."""
    first = make_broker()
    reader = first.listener("s")
    first.say("s", 12, sender=TOY)
    [row] = rows(first, reader)
    row[1][5], row[7] = "toy1", "2"
    for restarted in (False, True):
        if restarted:
            first.core.settle()
        broker = make_broker() if restarted else first
        toy = broker.toy("s")
        assert (door(broker, row) or "").startswith(OTHER)
        assert toy.take() == []


def test_a_valid_signature_on_an_unpublished_message_is_refused(broker: Any, door: Door, recovered: Any) -> None:
    """Whatever else it may have signed: here it did not say that."""
    reader, toy = broker.listener("s"), broker.toy("s")
    broker.say("s", 12, sender=TOY)
    [row] = rows(broker, reader)
    signer = broker.adapter.bridge_signer.keys.of("toy", "somebody", 7)
    toy.take()
    row[1][3] = 5
    row[10] = sign_message(parse_message(json.dumps(row)), signer.key).signature
    assert recovered(row) == signer.address
    assert (door(broker, row) or "").startswith(NOT_PUBLISHED)
    assert toy.take() == []


def test_a_republished_bridged_direct_message_is_refused(broker: Any) -> None:
    receiver = broker.open()
    inbox = f"s/@{receiver.peer.number}"
    broker.ask(receiver, [2, 9, "r", inbox, 0, None])
    assert broker.bus.direct(Message("s", broker.toy().peer, "toy", b"1"), receiver.peer.number) == 1
    [row] = rows(broker, receiver)
    [answer] = broker.ask(receiver, [2, 8, "r", row, None])
    assert answer[3].startswith(f"Publish request failed: {NOT_PUBLISHED}")
    assert receiver.identity is None


def test_a_bridged_message_republished_as_key_rotation_is_refused(broker: Any) -> None:
    """The type of a message is not signed."""
    reader = broker.listener("s")
    broker.say("s", [1], sender=TOY)
    [row] = rows(broker, reader)
    row[3] = 32
    [answer] = broker.ask(broker.open(), [2, 8, "r", row, None])
    assert answer[3].startswith(f"Publish request failed: {NOT_PUBLISHED}")
    assert rows(broker, reader) == []
