"""Messages that wait for the index are found by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from gateway.core.message import Message, Peer
from gateway.storage.record import Entry
from gateway.storage.unapplied import Unapplied

SOMEBODY = Peer(1, "toy")


def message(seq: int) -> Message:
    return Message("lobby", SOMEBODY, "toy", b"1", seq=seq, ids=(f"a{seq}", f"b{seq}"))


def chosen(entries: Sequence[Entry]) -> Iterator[tuple[str, int]]:
    for entry in entries:
        assert isinstance(entry, Message)
        for id in entry.ids:
            yield id, entry.seq


def test_only_waiting_messages_are_found_by_their_ids() -> None:
    random, waiting, first, last = Random(3), Unapplied(chosen), 1, 0
    for _ in range(500):
        run = [message(last + number) for number in range(1, random.randrange(1, 9))]
        if run:
            waiting.add(run)
            last = run[-1].seq
        if random.random() < 0.3:
            first = random.randrange(first, last + 2)
            waiting.remove(first - 1)
        if random.random() < 0.3:
            seq = random.randrange(max(1, first - 5), last + 5)
            assert waiting.seq(f"b{seq}") == (seq if first <= seq <= last else None)
    waiting.remove(last)
    assert vars(waiting)["_ids"] == {}
