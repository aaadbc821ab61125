"""Messages of the negentropy protocol are encoded and decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.reconciliation.wire import (
    ID_SIZE,
    INFINITY,
    MAX_TIME,
    MalformedSync,
    Range,
    bound_between,
    decode,
    encode,
    encode_integer,
    place,
)

ids = st.binary(min_size=ID_SIZE, max_size=ID_SIZE)
prefixes = st.binary(max_size=ID_SIZE).map(lambda prefix: prefix.rstrip(b"\0"))
bounds = st.builds(place, st.integers(0, MAX_TIME), prefixes)
payloads = st.binary(min_size=16, max_size=16) | st.lists(ids, max_size=3)

# By the specification, byte by byte: version, bound (1 + time, size, prefix), mode, payload.
EXAMPLES = {
    "61": [Range(INFINITY, None)],
    "61" + "0000" + "02" + "00": [Range(INFINITY, [])],
    "61" + "00" + "00" + "01" + "ab" * 16: [Range(INFINITY, b"\xab" * 16)],
    "61" + "814800" + "00" + "0101ff" + "01" + "cd" * 16: [
        Range(place(199), None),
        Range(place(199, b"\xff"), b"\xcd" * 16),
    ],
    "61" + "03" + "02" + "0102" + "02" + "01" + "11" * 32 + "0000" + "00": [
        Range(place(2, b"\1\2"), [b"\x11" * 32]),
        Range(INFINITY, None),
    ],
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_messages_are_read_as_specified(text: str) -> None:
    assert decode(bytes.fromhex(text))[: len(EXAMPLES[text])] == EXAMPLES[text]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "00"), (127, "7f"), (128, "8100"), (16_383, "ff7f"), ((1 << 64) - 1, "81" + "ff" * 8 + "7f")],
)
def test_integers_are_written_as_specified(value: int, text: str) -> None:
    assert encode_integer(value).hex() == text


@given(st.dictionaries(bounds, payloads, max_size=8), st.none() | payloads)
def test_ranges_survive_the_round_trip(
    parts: dict[bytes, bytes | list[bytes]], last: bytes | list[bytes] | None
) -> None:
    ranges = [*(Range(upper, parts[upper]) for upper in sorted(parts)), Range(INFINITY, last)]
    assert decode(encode(ranges)) == ranges


def test_adjacent_skip_ranges_are_merged() -> None:
    ranges = [Range(place(1), None), Range(place(2), None), Range(place(3), [])]
    assert decode(encode(ranges)) == [Range(place(2), None), Range(place(3), []), Range(INFINITY, None)]
    assert encode(ranges[:2]) == b"\x61"


@given(st.integers(0, 3), st.integers(0, 3), ids, ids)
def test_a_bound_is_between_two_places(time: int, later: int, one: bytes, other: bytes) -> None:
    lower, upper = sorted((place(time, one), place(time + later, other)))
    if lower != upper:
        assert lower < bound_between(lower, upper) <= upper


MALFORMED = {
    "within an integer": "6180",
    "within a fingerprint": "61000001" + "ab" * 15,
    "within ids": "6100000202" + "ab" * 63,
    "more ids than there are bytes": "61000002ffffffff7f",
    "an unknown mode": "61000003",
    "an integer that does not end": "61" + "80" * 11,
    "an integer above 64 bits": "61" + "ff" * 9 + "7f" + "00" + "00",
    "a bound that is too long": "610121" + "00" * 33 + "00",
    "a part of an id at infinity": "610001ab00",
    "descending bounds": "61" + "0301ab" + "00" + "0101aa" + "00",
    "something after infinity": "61" + "000000" + "000000",
    "more ranges than anybody needs": "61" + "010000" * ((1 << 15) + 1),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_refused(text: str) -> None:
    with pytest.raises(MalformedSync):
        decode(bytes.fromhex(text))


@given(st.binary(max_size=200))
def test_any_bytes_are_ranges_or_refused(data: bytes) -> None:
    try:
        found = decode(b"\x61" + data)
    except MalformedSync:
        return
    assert [upper for upper, _ in found] == sorted(upper for upper, _ in found)
    assert found[-1].upper == INFINITY
