"""A signed text that can be split into fields in several ways is accepted once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.streamr.model.streams import MAX_PARTITIONS
from adapters.streamr.publishing.validation import MAX_AHEAD, ambiguous_partitions
from adapters.streamr.wire.message import ETH, ETH_LEGACY, MessageID, StreamMessage
from tests.adapters.streamr.conftest import Broker, Publisher

NOW = 1_763_900_000_000
YEAR_2001 = 10**12


def split(text: str) -> Iterator[tuple[str, int, int, int]]:
    """All fields, of a time from 2001 until now, that are *text* when they are joined."""
    for at in range(1, len(text)):
        for time in range(at + 1, min(at + 4, len(text) - 13)):
            numbers = text[at:time], text[time : time + 13], text[time + 13 :]
            if all(number.isdigit() and str(int(number)) == number for number in numbers):
                partition, timestamp, sequence = map(int, numbers)
                if partition < MAX_PARTITIONS and YEAR_2001 <= timestamp <= NOW + MAX_AHEAD:
                    yield text[:at], partition, timestamp, sequence


def signed(stream: str, partition: int, timestamp: int, sequence: int, kind: int = ETH) -> StreamMessage:
    return StreamMessage(MessageID(stream, partition, timestamp, sequence, "0xa"), "1", signature_type=kind)


streams = st.builds(str.__add__, st.sampled_from(["", "s", "s-"]), st.text("0179", max_size=4)).filter(bool)
times = st.integers(YEAR_2001, NOW + MAX_AHEAD) | st.integers(NOW - 10_000, NOW)


@given(streams, st.integers(0, MAX_PARTITIONS - 1), times, st.integers(0, 20) | st.integers(0, 10**6))
@example("s-0", 17, 1_631_234_567_812, 34)
@example("s-", 0, 1_716_312_345_678, 1234)
@example("s1", 0, NOW, 0)
@example("s", 10, NOW, 0)
@example("1", 0, NOW, 0)
def test_all_other_splits_of_a_signed_text_are_found(
    stream: str, partition: int, timestamp: int, sequence: int
) -> None:
    message = signed(stream, partition, timestamp, sequence)
    others = [each for each in split(f"{stream}{partition}{timestamp}{sequence}") if each != message.id[:4]]
    places = ambiguous_partitions(message, NOW)
    if places is None:
        return
    assert [each[:2] for each in others if each[2:] == (timestamp, sequence)] == places
    assert all(each[2:] == (timestamp, sequence) for each in others)


@pytest.mark.parametrize(
    ("stream", "others"), [("s", []), ("s-0", []), ("s-2", [("s-", 20)]), ("0xab/room-42", [("0xab/room-4", 20)])]
)
def test_the_place_of_most_messages_is_certain(stream: str, others: list[Any]) -> None:
    assert ambiguous_partitions(signed(stream, 0, NOW, 3), NOW) == others


@pytest.mark.parametrize("message", [signed("s", 0, NOW, 0, ETH_LEGACY), signed("s", 0, 176_390_000_000, 12)])
def test_a_text_that_splits_into_another_time_is_ambiguous(message: StreamMessage) -> None:
    assert ambiguous_partitions(message, NOW) is None


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    ("first", "again"), [(("s-0", 16, 34), ("s-", 0, None)), (("s1", 0, 5), ("s", 10, 5)), (("s", 10, 5), ("s1", 0, 5))]
)
def test_a_signed_text_is_not_taken_again_with_other_fields(
    make_broker: Any, alice: Publisher, first: Any, again: Any, at_once: bool
) -> None:
    broker: Broker = make_broker(partitions=20)
    time = 1_631_234_567_812 if again[2] is None else broker.clock()
    row = alice.message(first[0], 1, time, first[2], partition=first[1])
    copy = [row[0], [again[0], again[1], time, again[2], *row[1][4:]], *row[2:]]
    if again[2] is None:
        copy[1][2:4] = 1_616_312_345_678, 1234
    listener = broker.listener(*again[:2])
    assert broker.ask(broker.open(), [2, 8, "r", row, None]) == []
    texts = [json.dumps([2, 8, "r", each, None], separators=(",", ":")).encode() for each in (copy, copy)]
    speaker = broker.open()
    if at_once:
        speaker.receive_data(b'[2,12,"r"]')  # decides on the versions
        speaker.receive_all(texts)
    else:
        speaker.receive_data(texts[0])
    assert broker.frames(listener) == []


def test_a_stream_that_ends_in_a_digit_is_not_looked_up(
    broker: Broker, alice: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.bus, "find", lambda named: pytest.fail(f"{named} is looked up"))
    toy, speaker = broker.toy("sensor-1"), broker.open()
    rows = [alice.message("sensor-1", number, broker.clock() + number) for number in range(4)]
    texts = [json.dumps([2, 8, "r", row, None], separators=(",", ":")).encode() for row in rows]
    speaker.receive_data(texts[0])
    speaker.receive_all(texts[1:])
    assert toy.take() == [b"0", b"1", b"2", b"3"]
