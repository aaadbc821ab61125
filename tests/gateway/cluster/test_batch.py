from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.batch import MAX_BATCH, BadBatch, Batch, decode_batch, encode_batch
from gateway.cluster.fences import Awaited, Fences
from gateway.core.message import Message, Peer
from gateway.storage.record import Fact, encode

CHANNEL = {"channel": "lobby", "addresses": {"toy": "lobby"}, "open": True}


def message(content: bytes = b'"hi"', **more: Any) -> Message:
    return Message(more.pop("channel", "lobby"), Peer(7, "toy", "ann"), more.pop("protocol", "toy"), content, **more)


def some() -> Batch:
    """A fact, a run of two, and another one."""
    first, second = message(timestamp=5, ids=("a",), native={"toy": "a"}), message(b"[1]", parent="p", id="chosen")
    return Batch("one", 2, 17, [Fact("channel", CHANNEL), [first, second], [message(channel="hall", key="k")]])


def shown(batch: Batch) -> Any:
    """*batch* as values that can be compared."""
    records = [[each] if isinstance(each, Fact) else each for each in batch.submissions]
    return *batch[:3], [[encode(entry) for entry in each] for each in records]


def test_a_batch_comes_back_as_it_was_submitted() -> None:
    batch = some()
    before = shown(batch)
    data = encode_batch(batch)
    assert shown(batch) == before, "encoding leaves the messages as they are, to be taken"
    assert shown(decode_batch(data)) == before
    assert data.startswith(b"one 2 17 4 ")
    again = decode_batch(data).submissions[1]
    assert not isinstance(again, Fact)
    assert [(each.seq, each.time, each.id, each.timestamp) for each in again] == [(0, 0, "", 5), (0, 0, "chosen", 0)]


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


@pytest.mark.parametrize(
    "submissions",
    [
        [],
        [[]],
        [[message(seq=1)]],
        [[message(refs={"toy": 1})]],
        [[message(id="made", id_has_seq=True)]],
        [[message(b'"%b"' % (b"x" * MAX_BATCH))]],
    ],
)
def test_what_is_no_submission_is_not_encoded(submissions: Any) -> None:
    with pytest.raises(BadBatch):
        encode_batch(Batch("one", 1, 1, submissions))


@pytest.mark.parametrize(
    ("submissions", "reason"),
    [
        ([[message(), message(channel="hall")]], "one protocol in one channel"),
        ([[message(), message(protocol="echo")]], "one protocol in one channel"),
        ([[message(time=5)]], "taken already"),
    ],
)
def test_what_no_gateway_submits_is_refused(submissions: Any, reason: str) -> None:
    with pytest.raises(BadBatch, match=reason):
        decode_batch(encode_batch(Batch("one", 1, 1, submissions)))


@pytest.mark.parametrize("about", [("", 1, 1), ("a b", 1, 1), ("a" * 65, 1, 1), ("a", 0, 1), ("a", 1, 1 << 53)])
def test_a_header_has_a_name_and_numbers(about: tuple[str, int, int]) -> None:
    with pytest.raises(BadBatch):
        encode_batch(Batch(about[0], about[1], about[2], [[message()]]))


def test_each_batch_counts_once_and_in_its_order() -> None:
    fences = Fences()
    sent = [(1, 2), (1, 1), (1, 1), (1, 3), (1, 2), (2, 2), (1, 3), (2, 1), (1, 4), (2, 2), (2, 1)]
    counted = [each for each in sent if fences.admit(Batch("one", each[0], each[1], ()))]
    assert counted == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert (fences.awaited("one"), fences.awaited("two")) == (Awaited(2, 3), None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 4))))
def test_what_counts_has_no_gap_no_repetition_and_no_former_life(sent: list[tuple[str, int, int]]) -> None:
    fences, lives = Fences(), dict[str, list[tuple[int, int]]]()
    for gateway, epoch, number in sent:
        if fences.admit(Batch(gateway, epoch, number, ())):
            lives.setdefault(gateway, []).append((epoch, number))
    for counted in lives.values():
        assert counted == sorted(set(counted))
        for epoch in {epoch for epoch, _ in counted}:
            numbers = [number for each, number in counted if each == epoch]
            assert numbers == [*range(1, len(numbers) + 1)]
