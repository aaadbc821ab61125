"""Direct messages in inboxes, and group-key messages on key-exchange streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.message import Message


def error(answers: list[Any]) -> tuple[str, str]:
    """The text and the code of the one answer, an ErrorResponse."""
    ((_version, kind, _request, text, code),) = answers
    assert kind == 7
    return text, code


def subscribe(broker: Any, session: Any, stream: str, token: str | None = None) -> None:
    assert broker.ask(session, [2, 9, "r", stream, 0, token]) == [[2, 2, "r", stream, 0]]


def tell(broker: Any, number: int, content: Any, channel: str = "s") -> int:
    """What a toy says to one peer."""
    message = Message(channel, broker.toy().peer, "toy", json.dumps(content, ensure_ascii=False).encode())
    return int(broker.bus.direct(message, number))


# Inboxes


def test_a_streamr_sender_reaches_an_inbox_unchanged(broker: Any, alice: Any) -> None:
    receiver, other, sender = broker.listener("s"), broker.listener("s"), broker.open()
    inbox = f"s/@{receiver.peer.number}"
    subscribe(broker, receiver, inbox)
    row = alice.message(inbox, {"n": 1}, broker.clock())
    assert broker.ask(sender, [2, 8, "r", row, None]) == []
    assert broker.frames(receiver) == [[2, 0, "", row]]
    assert broker.frames(other) == []
    assert broker.logged() == [], "nothing about it is in the log"


def test_other_protocols_reach_an_inbox_signed_and_in_order(broker: Any, recovered: Callable[..., str]) -> None:
    receiver = broker.open()
    inbox = f"s/@{receiver.peer.number}"
    subscribe(broker, receiver, inbox)
    assert [tell(broker, receiver.peer.number, number) for number in range(3)] == [1, 1, 1]
    found = [frame[3] for frame in broker.frames(receiver)]
    assert [row[1][0] for row in found] == [inbox] * 3
    assert [row[1][2:4] for row in found] == [[broker.clock(), number] for number in range(3)]
    assert [row[2] for row in found] == [None] * 3
    assert all(recovered(row) == row[1][4] for row in found)


def test_direct_messages_to_clients_before_4_0_are_signed_for_them(broker: Any, recovered: Callable[..., str]) -> None:
    """It counts the characters that were signed in UTF-16 units."""
    receiver = broker.open({"controlLayerVersion": "1", "messageLayerVersion": "31"})
    inbox = f"s/@{receiver.peer.number}"
    assert broker.ask(receiver, [1, 9, inbox, 0, None]) == [[1, 2, inbox, 0]]
    assert tell(broker, receiver.peer.number, "héllo \U0001f333") == 1
    ((_control, _type, (_version, id, prev, _kind, _encryption, content, _way, signature)),) = broker.frames(receiver)
    text = "".join(map(str, id)) + content
    row = [32, id, prev, 27, 0, 0, None, content, None, 2, signature]
    assert recovered(row, len(text.encode("utf-16-le")) // 2) == id[4]


def test_an_inbox_of_an_address(broker: Any, alice: Any, unsigned: Any) -> None:
    receiver, sender = broker.open(), broker.open()
    inbox = f"s/@{alice.address}"
    assert error(broker.ask(receiver, [2, 9, "r", inbox, 0, None]))[1] == "PERMISSION_DENIED"
    subscribe(broker, receiver, inbox, broker.token(alice))
    assert broker.ask(sender, [2, 8, "r", unsigned(inbox, {"hi": 1}, broker.clock()), None]) == []
    assert tell(broker, receiver.who.number, "from elsewhere") == 1
    assert [frame[3][1][0] for frame in broker.frames(receiver)] == [inbox, inbox]


def test_a_subscriber_of_only_the_stream_receives_direct_messages(broker: Any) -> None:
    receiver = broker.listener("s")
    assert tell(broker, receiver.peer.number, 1) == 1
    assert broker.frames(receiver)[0][3][1][0] == f"s/@{receiver.peer.number}"


def test_an_inbox_subscription_does_not_receive_the_stream(broker: Any) -> None:
    receiver = broker.open()
    inbox = f"s/@{receiver.peer.number}"
    subscribe(broker, receiver, inbox)
    broker.say("s", "to all")
    assert broker.frames(receiver) == []
    subscribe(broker, receiver, "s")
    broker.say("s", "to all")
    assert len(broker.frames(receiver)) == 1
    assert broker.ask(receiver, [2, 10, "r", "s", 0])[0][1] == 3
    assert broker.bus.listener_count("s") == 1
    assert broker.ask(receiver, [2, 10, "r", inbox, 0])[0][1] == 3
    assert broker.bus.listener_count("s") == 0
    assert error(broker.ask(receiver, [2, 10, "r", inbox, 0]))[1] == "INVALID_REQUEST"


def test_subscribing_to_the_inbox_of_another_peer_is_refused(broker: Any, alice: Any, bob: Any) -> None:
    other, thief = broker.open(), broker.open()
    for inbox in (f"s/@{other.peer.number}", f"s/@{alice.address}"):
        text, code = error(broker.ask(thief, [2, 9, "r", inbox, 0, broker.token(bob)]))
        assert (text, code) == (f"You are not allowed to subscribe to stream {inbox}", "PERMISSION_DENIED")
    assert thief.channels == {}


def test_a_direct_message_to_an_absent_peer_is_not_found(broker: Any, unsigned: Any, alice: Any) -> None:
    absent = broker.open()
    for peer in (absent.peer.number, 999_999, alice.address):
        inbox = f"s/@{peer}"
        answer = broker.ask(broker.open(), [2, 8, "r", unsigned(inbox, 1, broker.clock()), None])
        assert error(answer) == (f"Stream {inbox} not found.", "NOT_FOUND")


def test_a_direct_message_cannot_be_replayed(broker: Any, alice: Any) -> None:
    receiver = broker.open()
    inbox = f"s/@{receiver.peer.number}"
    subscribe(broker, receiver, inbox)
    row = alice.message(inbox, 1, broker.clock() + 150_000)
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert len(broker.frames(receiver)) == 1
    assert broker.ask(receiver, [2, 8, "r", row, None]) == []
    broker.clock.now += 300_001
    broker.bus.tick()
    assert "timestamp of a direct message must be" in error(broker.ask(receiver, [2, 8, "r", row, None]))[0]
    assert receiver.identity is None, "the receiver does not become the sender"


def test_direct_messages_cannot_be_replayed_after_a_restart(
    make_broker: Callable[..., Any], alice: Any, unsigned: Any
) -> None:
    """Neither by the gateway for somebody who only ever spoke directly, nor by who signs: nothing of it is kept."""
    first = make_broker()
    first.clock.now -= 1_000  # the second one's begins where this one's began
    receiver = first.open()
    inbox = f"s/@{alice.address}"
    subscribe(first, receiver, inbox, first.token(alice))
    assert tell(first, receiver.who.number, 1) == 1
    [bridged] = [frame[3] for frame in first.frames(receiver)]
    first.core.settle()
    second = make_broker()
    receiver = second.open()
    subscribe(second, receiver, inbox, second.token(alice))
    for row in (bridged, alice.message(inbox, 1, first.clock.now)):
        text, _ = error(second.ask(second.open(), [2, 8, "r", row, None]))
        assert "was signed before the gateway started" in text
    for row in (alice.message(inbox, 1, second.clock.now), unsigned(inbox, 1, first.clock.now)):
        assert second.ask(second.open(), [2, 8, "r", row, None]) == []
    assert len(second.frames(receiver)) == 2


def test_inboxes_of_partitions_are_named_after_the_channel(make_broker: Callable[..., Any]) -> None:
    broker = make_broker(streams={"wide": 2})
    receiver = broker.listener("wide", 1)
    subscribe(broker, receiver, f"wide#1/@{receiver.peer.number}")
    assert tell(broker, receiver.peer.number, 1, "wide#1") == 1
    assert broker.frames(receiver)[0][3][1][:2] == [f"wide#1/@{receiver.peer.number}", 0]


def test_the_names_of_an_inbox_are_bounded(broker: Any, alice: Any) -> None:
    receiver, token = broker.open(), broker.token(alice)
    digits = alice.address[2:]
    letters = [place for place, digit in enumerate(digits) if digit.isalpha()]
    spellings = [f"0x{digits[:place]}{digits[place].upper()}{digits[place + 1 :]}" for place in letters[:6]]
    answers = [broker.ask(receiver, [2, 9, "r", f"s/@{name}", 0, token])[0][1] for name in spellings]
    assert answers == [2, 2, 2, 2, 7, 7]


# Key exchange


def test_group_key_messages_pass_between_streamr_peers_only(broker: Any, alice: Any, bob: Any) -> None:
    stream = f"SYSTEM/keyexchange/{bob.address}"
    toy, receiver, writer = broker.toy(stream), broker.open(), broker.open()
    old = broker.open({"controlLayerVersion": "1", "messageLayerVersion": "31"})
    subscribe(broker, receiver, stream, broker.token(bob))
    assert broker.ask(old, [1, 9, stream, 0, broker.token(bob)]) == [[1, 2, stream, 0]]
    for kind in range(28, 32):
        row = alice.message(stream, ["r", "s", "key", []], broker.clock(), kind, kind=kind)
        assert broker.ask(writer, [2, 8, "r", row, None]) == []
        assert broker.frames(receiver) == [[2, 0, "", row]]
        assert broker.frames(old) == [[1, 0, [31, row[1], None, kind, 0, row[7], 2, row[10]]]]
    assert [heard for heard in toy.take() if isinstance(heard, bytes)] == []
    assert broker.logged() == []
    assert broker.ask(receiver, [2, 10, "r", stream, 0]) == [[2, 3, "r", stream, 0]]
    broker.ask(writer, [2, 8, "r", row, None])
    assert broker.frames(receiver) == []


@pytest.mark.parametrize("fault", ["forged", "unsigned", "type", "partition"])
def test_group_key_messages_are_signed_and_in_their_place(broker: Any, alice: Any, bob: Any, fault: str) -> None:
    stream = f"SYSTEM/keyexchange/{bob.address}"
    receiver = broker.open()
    subscribe(broker, receiver, stream, broker.token(bob))
    more = {"type": {"kind": 27}, "partition": {"kind": 28, "partition": 1}}.get(fault, {"kind": 28})
    row = alice.message(stream, ["r"], broker.clock(), **more)
    if fault == "forged":
        row[7] = '["x"]'
    elif fault == "unsigned":
        row[9:] = [0, None]
    text, code = error(broker.ask(broker.open(), [2, 8, "r", row, None]))
    assert text.startswith("Publish request failed: ")
    assert code == "REQUEST_FAILED"
    assert broker.frames(receiver) == []


def test_key_exchange_streams_are_those_of_addresses(broker: Any, alice: Any) -> None:
    session = broker.open()
    stream = f"SYSTEM/keyexchange/{alice.address}"
    assert "Partition 1 is out of range (0..0)" in error(broker.ask(session, [2, 9, "r", stream, 1, None]))[0]
    assert error(broker.ask(session, [2, 10, "r", stream, 0]))[1] == "INVALID_REQUEST"
