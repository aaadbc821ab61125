"""Answers refer to messages by their Streamr ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from adapters.streamr.model import message_ids
from gateway.core.message import LATE_AFTER, Message


def shown(broker: Any, listener: Any) -> list[list[Any]]:
    """The ids of what *listener* was just shown."""
    return [frame[3][1] for frame in broker.frames(listener) if frame[1] == 0]


@pytest.fixture(params=["waiting", "applied"])
def settle(request: pytest.FixtureRequest, broker: Any) -> Callable[[], None]:
    """Brings the index level, or does not."""
    return broker.core.settle if request.param == "applied" else lambda: None


def test_messages_of_one_millisecond_are_distinguished(broker: Any, settle: Callable[[], None]) -> None:
    listener, senders = broker.listener("s"), [broker.toy().peer for _ in range(3)]
    said = [broker.say("s", number, sender=senders[number % 3]) for number in range(12)]
    ids = shown(broker, listener)
    settle()
    assert [broker.bus.canonical_id(json.dumps(id)) for id in ids] == [message.id for message in said]


def test_ids_of_partitioned_late_and_reordered_messages_are_found(
    make_broker: Callable[..., Any], settle: Callable[[], None], broker: Any
) -> None:
    sender, now = broker.toy().peer, broker.clock()
    listener = broker.listener("s")
    said = [broker.say("s", 1, sender=sender), broker.say("s", 2, sender=sender, timestamp=now - 5)]
    ids = shown(broker, listener)
    assert [id[2:4] for id in ids] == [[now, 0], [now, 1]]
    late = broker.say("s", 3, sender=sender, timestamp=now - LATE_AFTER - 1, late=True)
    place = broker.adapter.parts.forms.position(late)
    ids.append(["s", 0, *place])
    settle()
    assert [broker.bus.canonical_id(json.dumps(id)) for id in ids] == [message.id for message in (*said, late)]
    wide = make_broker(partitions=4)
    listener, message = wide.listener("w", 3), wide.say("w#3", 1)
    (id,) = shown(wide, listener)
    assert id[:2] == ["w", 3]
    assert wide.bus.canonical_id(json.dumps(id)) == message.id


def test_signed_messages_are_found_by_any_spelling_of_their_id(
    broker: Any, alice: Any, settle: Callable[[], None]
) -> None:
    """Clients of version 2 write addresses with their checksum in capitals."""
    publisher = "0x" + alice.address[2:].upper()
    row = alice.message("s", {"n": 1}, broker.clock(), publisher=publisher)
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    (message,) = broker.logged("s")
    settle()
    for id in (row[1], [*row[1][:4], alice.address, "chain"]):
        for text in (json.dumps(id), json.dumps(id, separators=(",", ":")), json.dumps(id, indent=1)):
            assert broker.bus.canonical_id(text) == message.id


def test_ids_of_unsigned_messages_resolve_to_none(broker: Any, unsigned: Any, settle: Callable[[], None]) -> None:
    row = unsigned("s", {"n": 1}, broker.clock())
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    settle()
    assert broker.bus.canonical_id(json.dumps(row[1])) is None


def test_ids_of_direct_messages_resolve_to_none(broker: Any, settle: Callable[[], None]) -> None:
    listener = broker.open()
    number = listener.peer.number
    assert broker.ask(listener, [2, 9, "r", f"s/@{number}", 0, None])[0][1] == 2
    assert broker.bus.direct(Message("s", broker.toy().peer, "toy", b"1"), number) == 1
    (id,) = shown(broker, listener)
    settle()
    assert broker.bus.canonical_id(json.dumps(id)) is None


NO_IDS = """
[
[]
[1]
null
"s"
["s",0,1,0,"",""] x
["s",0,1,0,"0xab"]
["s",0,1,0,"0xab","c",1]
["s",0.0,1,0,"0xab","c"]
["s",0,true,0,"0xab","c"]
["s",0,-1,0,"0xab","c"]
["s",0,1,9007199254740992,"","c"]
["s",0,1,0,"0xab","\\ud800"]
["\\ud83c",0,1,0,"0xab","c"]
"""


@pytest.mark.parametrize("text", [*NO_IDS.split("\n"), "[" * 900])
def test_other_texts_resolve_to_none(broker: Any, text: str) -> None:
    broker.say("s", 1)
    assert broker.bus.canonical_id(text) is None


def test_candidates_of_one_millisecond_are_bounded(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, listener = broker.toy().peer, broker.listener("s")
    said = [broker.say("s", number, sender=sender) for number in range(message_ids.MAX_CANDIDATES + 5)]
    ids = shown(broker, listener)
    broker.core.settle()
    reads: list[int] = []
    read: Callable[[int, int], Message | None] = broker.core.index.read

    def counted(seq: int, offset: int) -> Message | None:
        reads.append(seq)
        return read(seq, offset)

    monkeypatch.setattr(broker.core.index, "read", counted)
    for number in (0, message_ids.MAX_CANDIDATES - 1):
        assert broker.bus.canonical_id(json.dumps(ids[number])) == said[number].id
    for bound, most in ((message_ids.MAX_CANDIDATE_BYTES, message_ids.MAX_CANDIDATES), (3, 4)):
        monkeypatch.setattr(message_ids, "MAX_CANDIDATE_BYTES", bound)
        reads.clear()
        assert broker.bus.canonical_id(json.dumps([*ids[0][:5], "another chain"])) is None
        assert len(reads) == most
    for stranger in ("0x" + 40 * "0", ""):
        reads.clear()
        assert broker.bus.canonical_id(json.dumps([*ids[0][:4], stranger, "toy"])) is None
        assert reads == []
