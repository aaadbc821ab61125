"""A sorted set of messages that computes the fingerprint of any range without reading all of it.

Laws of this file. An item is `ITEM_SIZE` bytes: the place of its message (`gateway.reconciliation.wire`), then the
sequence here. Items are kept in blocks, sorted; each block knows the sum of its ids. A million take 55 MB. Nothing
here waits or locks: one thread at a time may use a set.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import accumulate, groupby
from typing import Final

from .wire import FINGERPRINT_SIZE, ID_SIZE, TIME_SIZE, encode_integer, place

SEQ_SIZE: Final = 6
PLACE_SIZE: Final = TIME_SIZE + ID_SIZE
ITEM_SIZE: Final = PLACE_SIZE + SEQ_SIZE
BLOCK: Final = 128  # items; a block that grows to twice as many is divided
MODULUS: Final = 1 << (8 * ID_SIZE)


def make_item(time: int, id: bytes, seq: int) -> bytes:
    """The item of the message with the sequence *seq*, whose *id* has 32 bytes, at *time* (ms)."""
    return place(time, id) + seq.to_bytes(SEQ_SIZE)


def id_of(item: bytes) -> bytes:
    """The id of *item*."""
    return item[TIME_SIZE:PLACE_SIZE]


def seq_of(item: bytes) -> int:
    """The sequence of *item*."""
    return int.from_bytes(item[PLACE_SIZE:])


class ItemSet:
    """Items in the order of their places; the rank of an item is how many are before it."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._firsts: list[bytes] = []  # the first item of each block
        self._sums: list[int] = []  # of the ids of each block, modulo `MODULUS`
        self._ranks = [0]  # of the first item of each block, and how many there are in all
        self._totals = [0]  # the sums of all blocks before each block, and of all

    @classmethod
    def of_blocks(cls, blocks: list[bytes], sums: list[int]) -> ItemSet:
        """The set whose `blocks` these are."""
        made = cls()
        made._blocks, made._sums = blocks, sums
        made._firsts = [block[:ITEM_SIZE] for block in blocks]
        made._count()
        return made

    def blocks(self) -> tuple[list[bytes], list[int]]:
        """Its items in blocks, and the sum of the ids of each block."""
        return self._blocks, self._sums

    def __len__(self) -> int:
        return self._ranks[-1]

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return len(self) * (ITEM_SIZE + 8)

    def add(self, items: Iterable[bytes]) -> None:
        """Add *items*; an item whose place is taken replaces the one that is there."""
        new = {item[:PLACE_SIZE]: item for item in items}
        found = sorted(new.values())
        for at, group in reversed([(at, list(group)) for at, group in groupby(found, self._block_of)]):
            there = {item[:PLACE_SIZE]: item for item in _items(self._blocks[at])} if self._blocks else {}
            self._replace(at, sorted((there | {item[:PLACE_SIZE]: item for item in group}).values()))
        self._count()

    def remove_below(self, seq: int) -> None:
        """Remove the items with a sequence below *seq*."""
        for at in reversed(range(len(self._blocks))):
            kept = [item for item in _items(self._blocks[at]) if seq_of(item) >= seq]
            if len(kept) * ITEM_SIZE < len(self._blocks[at]):
                self._replace(at, kept)
        self._count()

    def rank(self, bound: bytes) -> int:
        """How many items are below *bound*, a place or the beginning of one."""
        at = bisect_left(self._firsts, bound) - 1
        if at < 0:
            return 0
        block = self._blocks[at]
        count = len(block) // ITEM_SIZE
        inner = bisect_left(range(count), bound, key=lambda n: block[n * ITEM_SIZE : (n + 1) * ITEM_SIZE])
        return self._ranks[at] + inner

    def has(self, item: bytes) -> bool:
        """Whether it has exactly this *item*."""
        return (rank := self.rank(item)) < len(self) and self.item(rank) == item

    def item(self, rank: int) -> bytes:
        """The item with this *rank*."""
        at = bisect_right(self._ranks, rank) - 1
        start = (rank - self._ranks[at]) * ITEM_SIZE
        return self._blocks[at][start : start + ITEM_SIZE]

    def items(self, begin: int, end: int) -> Iterator[bytes]:
        """The items with ranks from *begin* to before *end*."""
        at = bisect_right(self._ranks, begin) - 1
        while begin < end:
            block, start = self._blocks[at], begin - self._ranks[at]
            stop = min(end - self._ranks[at], len(block) // ITEM_SIZE)
            yield from _items(block[start * ITEM_SIZE : stop * ITEM_SIZE])
            begin, at = self._ranks[at] + stop, at + 1

    def find(self, ids: set[bytes]) -> dict[bytes, int]:
        """The sequences of those of *ids* that are in the set, in one pass over all."""
        return {id_of(item): seq_of(item) for item in self.items(0, len(self)) if id_of(item) in ids}

    def fingerprint(self, begin: int, end: int) -> bytes:
        """The fingerprint of the items with ranks from *begin* to before *end*."""
        total = (self._sum_before(end) - self._sum_before(begin)) % MODULUS
        return sha256(total.to_bytes(ID_SIZE, "little") + encode_integer(end - begin)).digest()[:FINGERPRINT_SIZE]

    def _sum_before(self, rank: int) -> int:
        at = bisect_right(self._ranks, rank) - 1
        inner = rank - self._ranks[at]
        return self._totals[at] + (_sum(self._blocks[at][: inner * ITEM_SIZE]) if inner else 0)

    def _block_of(self, item: bytes) -> int:
        return max(0, bisect_right(self._firsts, item[:PLACE_SIZE] + b"\xff" * SEQ_SIZE) - 1)

    def _replace(self, at: int, items: list[bytes]) -> None:
        """Have *items* in the place of block *at*, in several blocks if they are many."""
        size = len(items) if len(items) < 2 * BLOCK else BLOCK
        blocks = [b"".join(items[start : start + size]) for start in range(0, len(items), size or 1)]
        self._blocks[at : at + 1] = blocks
        self._firsts[at : at + 1] = [block[:ITEM_SIZE] for block in blocks]
        self._sums[at : at + 1] = map(_sum, blocks)

    def _count(self) -> None:
        self._ranks = [*accumulate((len(block) // ITEM_SIZE for block in self._blocks), initial=0)]
        self._totals = [*accumulate(self._sums, initial=0)]


def _items(block: bytes) -> list[bytes]:
    return [block[at : at + ITEM_SIZE] for at in range(0, len(block), ITEM_SIZE)]


def _sum(block: bytes) -> int:
    """The sum of the ids of the items in *block*, as little-endian numbers, modulo `MODULUS`."""
    starts = range(TIME_SIZE, len(block), ITEM_SIZE)
    return sum(int.from_bytes(block[at : at + ID_SIZE], "little") for at in starts) % MODULUS
