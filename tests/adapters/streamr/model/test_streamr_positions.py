"""A position that is called new was never logged, and others are looked up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.streamr.model import positions
from adapters.streamr.model.positions import PublisherPositions
from gateway.storage.log import SealPolicy
from gateway.storage.retention import Retention, RetentionLimits


def test_most_messages_are_known_to_be_new_without_a_lookup() -> None:
    asked: list[str] = []

    def newest(channel: str) -> int:
        asked.append(channel)
        return 100

    known = PublisherPositions(newest)
    assert not known.beyond("s", "a", (100, 7)), "the log has something of that millisecond"
    for position in ((101, 0), (101, 1), (200, 0)):
        assert known.beyond("s", "a", position)
        known.advance("s", "a", position)
        assert not known.beyond("s", "a", position)
        assert known.beyond("s", "b", position), "another publisher's place is another"
    assert not known.beyond("s", "a", (150, 0))
    assert asked == ["s"]


said = st.tuples(st.sampled_from("st"), st.sampled_from("abc"), st.tuples(st.integers(0, 9), st.integers(0, 2)))


@settings(deadline=None)
@given(st.lists(said, max_size=30), st.lists(said, max_size=60), st.integers(1, 3))
def test_a_position_beyond_the_known_ones_was_never_logged(before: list[Any], later: list[Any], room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "MAX_POSITIONS", room)
        patch.setattr(positions, "MAX_FLOORS", room)
        log = set(before)
        known = PublisherPositions(lambda channel: max((p[0] for c, _, p in log if c == channel), default=0))
        for each in later:
            if known.beyond(*each):
                assert each not in log
            known.advance(*each)
            log.add(each)
            assert len(known._reached) <= room
            assert len(known._floors) <= room


def test_a_repeated_message_is_found_after_a_restart_and_a_late_one_is_taken(make_broker: Any, alice: Any) -> None:
    first = make_broker()
    now = first.clock()
    rows = [alice.message("s", {"n": number}, now + number) for number in range(3)]
    for row in rows:
        assert first.ask(first.open(), [2, 8, "r", row, None]) == []
    first.core.settle()
    second = make_broker()
    toy, session = second.toy("s"), second.open()
    for row in (rows[1], alice.message("s", {"n": 9}, now + 9), *rows, alice.message("s", {"n": 1.5}, now + 1, 5)):
        assert second.ask(session, [2, 8, "r", row, None]) == []
    assert [heard for heard in toy.take() if isinstance(heard, bytes)] == [b'{"n": 9}', b'{"n": 1.5}']
    assert second.ask(session, [2, 8, "r", alice.message("s", {"n": 8}, now + 9), None])[0][3].startswith(
        "Publish request failed: The id of this message belongs to one with other content"
    )


def test_a_known_signature_split_into_other_fields_is_a_copy(broker: Any, alice: Any) -> None:
    """`s1` and partition 0 sign for `s` and partition 10: a place that is new there, and a text that is not."""
    wide = broker.listener("s1")
    row = alice.message("s1", 1, broker.clock())
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert len(broker.frames(wide)) == 1
    broker.adapter.streams.describe("s", {"partitions": 11})
    toy = broker.toy("s#10")
    row[1][:2] = "s", 10
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    assert toy.take() == []


def test_messages_older_than_the_kept_history_are_refused(
    broker: Any, alice: Any, unsigned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy may have been retired: it would be said a second time."""
    core = broker.core
    monkeypatch.setattr(core.log._writer, "_sealing", SealPolicy(bytes=1))  # a segment for each batch
    old = alice.message("s", 1, broker.clock())
    for row in (old, unsigned("s", 2, broker.clock() + 1)):
        assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
        core.settle()
        core.clock.now += 1000
    for number in range(3):
        broker.say("s", number)
        core.settle()
        core.clock.now += 1000
    retention = Retention(
        core.segments,
        core.index,
        RetentionLimits(age=1500),
        core.clock,
        post=core.posted.put,
        append_marker=lambda: None,
    )
    for _ in range(3):
        retention.tick()
        core.settle()
    assert core.index.find(json.dumps(old[1], separators=(",", ":"))) is None, "it is gone"
    assert core.index.rows("SELECT seq FROM streamr_places WHERE seq NOT IN (SELECT seq FROM records)") == []
    toy = broker.toy("s")
    broker.adapter.tick(broker.clock())
    (frame,) = broker.ask(broker.open(), [2, 8, "r", old, None])
    assert frame[3].startswith("Publish request failed: The message is older than the history that is kept here. Mess")
    assert frame[4] == "REQUEST_FAILED"
    assert toy.take() == []
    assert broker.ask(broker.open(), [2, 8, "r", alice.message("s", 3, broker.clock()), None]) == []
    assert toy.take() == [b"3"]
