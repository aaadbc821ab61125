"""Two sides learn the differences of any two sets."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.reconciliation import rounds
from gateway.reconciliation.items import BLOCK, ItemSet, id_of, make_item, seq_of
from gateway.reconciliation.rounds import MIN_MESSAGE, answer, begin, compare
from gateway.reconciliation.wire import INFINITY, MalformedSync, Range, decode, encode, place

MANY = 4 * BLOCK


def item(number: int, time: int = -1) -> bytes:
    """The item of a message with this *number*; three have the same time by default."""
    return make_item(number // 3 if time < 0 else time, sha256(b"%d" % number).digest(), number)


def item_set(items: Iterable[bytes]) -> ItemSet:
    made = ItemSet()
    made.add(items)
    return made


def reconcile(ours: ItemSet, theirs: ItemSet, limit: int, since: int = 0) -> tuple[set[bytes], set[bytes], int]:
    """What only this side has and what it lacks, as ids, and the number of rounds."""
    have, need, rounds = set[bytes](), set[bytes](), 0
    message: bytes | None = begin(ours, since)
    while message is not None:
        reply = answer(theirs, message, limit)
        assert len(reply) <= limit + 1_024
        message, more, lacking = compare(ours, reply, limit)
        assert len(message or b"") <= limit + 1_024
        have |= set(map(id_of, more))
        need |= set(lacking)
        rounds += 1
        assert rounds < 1_000
    return have, need, rounds


numbers = st.integers(0, 400)
sets = st.sets(numbers, max_size=300) | st.builds(
    lambda first, count: set(range(first, first + count)), numbers, numbers
)


@given(sets, sets, st.sampled_from([0, 1, 5]))
def test_the_differences_of_any_two_sets_are_found_exactly(ours: set[int], theirs: set[int], same_times: int) -> None:
    def of(some: set[int]) -> set[bytes]:
        return {item(number, number * same_times // 5) for number in some}

    have, need, _ = reconcile(item_set(of(ours)), item_set(of(theirs)), 1 << 18)
    assert have == set(map(id_of, of(ours - theirs)))
    assert need == set(map(id_of, of(theirs - ours)))


@pytest.mark.parametrize(
    ("ours", "theirs"), [(range(3_000), range(0)), (range(0), range(3_000)), (range(3_000), range(500, 4_000, 3))]
)
def test_messages_keep_to_their_limit(ours: range, theirs: range) -> None:
    have, need, rounds = reconcile(item_set(map(item, ours)), item_set(map(item, theirs)), MIN_MESSAGE)
    assert have == {id_of(item(number)) for number in set(ours) - set(theirs)}
    assert need == {id_of(item(number)) for number in set(theirs) - set(ours)}
    assert rounds < 100


def test_equal_sets_need_one_round_and_few_bytes() -> None:
    ours = item_set(map(item, range(MANY)))
    assert answer(ours, begin(ours)) == b"\x61"
    assert compare(ours, b"\x61") == (None, [], [])


def test_few_differences_among_many_need_few_bytes() -> None:
    numbers = random.Random(1).sample(range(20_000), 10)
    ours = item_set(item(n) for n in range(20_000) if n not in numbers[:5])
    theirs = item_set(item(n) for n in range(20_000) if n not in numbers[5:])
    message: bytes | None = begin(ours)
    count = rounds = 0
    while message is not None:
        reply = answer(theirs, message)
        count, rounds = count + len(message) + len(reply), rounds + 1
        message = compare(ours, reply).next
    assert rounds <= 3
    assert count < 10_000


def test_older_items_can_be_left_out() -> None:
    ours, theirs = item_set(map(item, range(0, 900, 2))), item_set(map(item, range(0, 900, 3)))
    have, need, _ = reconcile(ours, theirs, 1 << 18, since=200)
    assert have == {id_of(item(n)) for n in range(600, 900) if not n % 2 and n % 3}
    assert need == {id_of(item(n)) for n in range(600, 900) if n % 2 and not n % 3}


@given(st.lists(st.sets(st.integers(0, 2_000), min_size=1, max_size=200), max_size=6), st.integers(0, 2_000), numbers)
def test_a_set_is_the_same_however_it_grew(grown: list[set[int]], below: int, at: int) -> None:
    made = ItemSet()
    for some in grown:
        made.add(map(item, some))
    made.remove_below(below)
    whole = sorted(item(n) for some in grown for n in some if n >= below)
    whole = sorted(set(whole))
    assert list(made.items(0, len(made))) == whole
    begin_rank, end_rank = made.rank(place(at)), made.rank(place(at + 50))
    inside = [each for each in whole if place(at) <= each < place(at + 50)]
    assert [made.item(rank) for rank in range(begin_rank, end_rank)] == inside
    total = sum(int.from_bytes(id_of(each), "little") for each in inside) % (1 << 256)
    count = len(inside).to_bytes() if len(inside) < 128 else bytes((0x80 | len(inside) >> 7, len(inside) & 0x7F))
    assert made.fingerprint(begin_rank, end_rank) == sha256(total.to_bytes(32, "little") + count).digest()[:16]


def test_an_item_is_found_by_its_id() -> None:
    made = item_set(map(item, range(MANY)))
    wanted = {id_of(item(n)) for n in (0, 7, MANY - 1, MANY)}
    assert made.find(wanted) == {id_of(item(n)): n for n in (0, 7, MANY - 1)}
    assert seq_of(made.item(made.rank(item(7)[:40]))) == 7


def test_another_version_is_answered_with_the_known_one() -> None:
    assert answer(ItemSet(), b"\x62 whatever") == b"\x61"


@pytest.mark.parametrize("message", [b"", b"\x00", b"Hello", b"\x61\x80"])
def test_malformed_messages_are_refused(message: bytes) -> None:
    for act in (answer, compare):
        with pytest.raises(MalformedSync):
            act(ItemSet(), message)


@given(st.binary(max_size=300))
def test_any_bytes_are_answered_or_refused(data: bytes) -> None:
    ours = item_set(map(item, range(200)))
    for act in (answer, compare):
        with suppress(MalformedSync):
            act(ours, b"\x61" + data)


def test_a_hostile_message_cannot_make_a_long_answer() -> None:
    ours = item_set(map(item, range(MANY)))
    wrong = encode([*(Range(place(time), bytes(16)) for time in range(1, MANY // 3)), Range(INFINITY, bytes(16))])
    assert len(answer(ours, wrong, MIN_MESSAGE)) <= MIN_MESSAGE + 1_024
    assert len(compare(ours, wrong, MIN_MESSAGE).next or b"") <= MIN_MESSAGE + 1_024
    everything = encode([Range(INFINITY, [])])
    assert len(answer(ours, everything, MIN_MESSAGE)) <= MIN_MESSAGE + 1_024
    assert decode(answer(ours, everything, MIN_MESSAGE))[-1].upper == INFINITY


def test_a_round_tells_a_bounded_number_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_TOLD", 50)
    ours = item_set(map(item, range(MANY)))
    assert len(compare(ours, encode([Range(INFINITY, [])])).have) == 50
    have, need, count = reconcile(ours, item_set(map(item, range(3, MANY + 3))), 1 << 18)
    assert (len(have), len(need)) == (3, 3)
    for theirs in ((), range(MANY, MANY + 60), range(0, MANY, 100)):
        have, need, count = reconcile(ours, item_set(map(item, theirs)), 1 << 18)
        assert have == {id_of(item(number)) for number in set(range(MANY)) - set(theirs)}
        assert need == {id_of(item(number)) for number in set(theirs) - set(range(MANY))}
        assert count <= 3 * MANY // 50
