from __future__ import annotations

import tracemalloc
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.batch import MAX_BATCH, NOBODY, BadBatch, Batch, decode_batch, encode_batch, entries_of
from gateway.cluster.turn_position import Position
from gateway.core.message import Message, Peer
from gateway.storage.record import Fact, encode


def line(seq: int, content: bytes = b'"hi"') -> bytes:
    peer = Peer(7, "toy", "ann")
    return encode(Message("lobby", peer, "toy", content, id=f"id {seq}", seq=seq, time=5, timestamp=5))


def some() -> Batch:
    fact = encode(Fact("channel", {"channel": "lobby", "addresses": {"toy": "lobby"}, "open": True}, 9, 5))
    return Batch("one@7", 17, "two@8", 9, [fact, line(10), line(11, b'"a\rb"'.replace(b"\r", b" "))])


def empty(number: int, first: int = 1, holder: str = "one@7") -> Batch:
    return Batch("one@7", number, holder, first, [])


def test_a_batch_survives_the_round_trip() -> None:
    batch = some()
    data = encode_batch(batch)
    assert data.startswith(b"one@7 17 two@8 9 3 ")
    assert decode_batch(data) == batch
    assert [encode(entry) for entry in entries_of(batch)] == batch.lines
    assert decode_batch(encode_batch(empty(1, holder=NOBODY))) == empty(1, holder=NOBODY)


@given(st.data())
def test_a_changed_byte_makes_it_bad(data: st.DataObject) -> None:
    good = encode_batch(some())
    at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    bad = bytearray(good)
    bad[at] ^= 1 << bit
    with pytest.raises(BadBatch):
        decode_batch(bytes(bad))


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_a_batch_or_bad(junk: bytes, end: int) -> None:
    for data in (junk, encode_batch(some())[:end], encode_batch(some()) + junk):
        try:
            batch = decode_batch(data)
        except BadBatch:
            continue
        assert encode_batch(batch) == data


@pytest.mark.parametrize("said", [7, 2 << 20])
def test_a_batch_of_line_feeds_is_not_split(said: int) -> None:
    body = b"\n" * (2 << 20)
    head = b"one@7 1 - 1 %d" % said
    data = b"%b %08x\n%b" % (head, crc32(body, crc32(head)), body)
    tracemalloc.start()
    try:
        with pytest.raises(BadBatch, match="the header does not match"):
            decode_batch(data)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_batch_has_a_length() -> None:
    with pytest.raises(BadBatch, match="at most"):
        encode_batch(Batch("one@7", 1, NOBODY, 1, [line(1, b'"%b"' % (b"x" * MAX_BATCH))]))


@pytest.mark.parametrize(
    "about", [("", 1, "-", 1), ("a b@1", 1, "-", 1), ("a@1", 0, "-", 1), ("a@1", 1, "", 1), ("a@1", 1, "-", 0)]
)
def test_a_header_has_members_and_numbers(about: tuple[str, int, str, int]) -> None:
    with pytest.raises(BadBatch):
        decode_batch(encode_batch(Batch(*about, [])))


@pytest.mark.parametrize("lines", [[line(2)], [line(1), line(3)], [line(1), b"{}\n"], [line(1)[:-9] + b"\n"]])
def test_lines_are_records_in_their_places(lines: list[bytes]) -> None:
    with pytest.raises(BadBatch):
        entries_of(decode_batch(encode_batch(Batch("one@7", 1, NOBODY, 1, lines))))


def test_a_batch_is_admitted_once_and_only_at_the_end_of_the_log() -> None:
    position = Position()
    assert position.admit(some()._replace(number=1))
    assert (position.number, position.holder, position.next_seq) == (1, "two@8", 12)
    assert not position.admit(some()._replace(number=1)), "twice"
    assert not position.admit(empty(3, 12)), "one before it is missing"
    assert not position.admit(empty(2, 11)), "its sender did not have the whole log"
    assert position.admit(empty(2, 12))
    assert position.holder == "one@7"
