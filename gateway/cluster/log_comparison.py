"""Compares the logs of the members of a cluster, in blocks of `BLOCK` records.

All members log the same lines, so the digest of a block is the same at each. Each reads its log from the disk again
and again, a block at a time, and its heartbeat tells the digest of one. If another member's is different, both tell
that block until the others have told theirs.

A member is damaged if another one contradicts it and its block lacks whole lines, or if most members contradict it. If
two whole blocks differ and there is no majority, nobody can tell which is right; both members say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

BLOCK: Final = 1024  # records
TOLD: Final = 3  # seconds for which a block is told before its member counts as damaged, so that others can name it
DIGEST_BYTES: Final = 8  # against damage, not against a forger, who might as well write to the stream


class BlockDigest(NamedTuple):
    """The *digest* of the lines of a *block*, as a member read it; *is_whole* says that it has all of them, undamaged.

    The block B has the records from (B - 1) * `BLOCK` + 1 to B * `BLOCK`.
    """

    block: int
    digest: str
    is_whole: bool = True


def digest_of(block: int, lines: Iterable[bytes]) -> BlockDigest:
    """The digest of a *block*, of which *lines* are those whose checksums are right."""
    digest, count = blake2b(digest_size=DIGEST_BYTES), 0
    for line in lines:
        digest.update(line)
        count += 1
    return BlockDigest(block, digest.hexdigest(), count == BLOCK)


def records_of(block: int) -> tuple[int, int]:
    """The first and the last sequence of a *block*."""
    return (block - 1) * BLOCK + 1, block * BLOCK


class LogComparison:
    """What is known of the logs of this member and of the *others*, which returns those that are members now."""

    def __init__(self, others: Callable[[], Sequence[str]]) -> None:
        self.newest = BlockDigest(0, "")  # the last block of this log that was read; 0 if none is complete
        self.same: dict[str, int] = {}  # by member: the last block that is the same there
        self.differing: dict[str, int] = {}  # by member: a block that is not
        self._others = others
        self._mine: dict[int, BlockDigest] = {}
        self._kept = 1  # the first sequence that retention has left
        self._told: dict[str, tuple[int, str]] = {}  # by member: what it told last
        self._last = BlockDigest(0, "")  # read last
        self._disputed = 0  # the block that differs; 0 if none does
        self._said: dict[str, str] = {}  # by member: its digest of that
        self._alternate = False
        self._seconds = 0  # since it differs

    def forget(self, before: int) -> None:
        """Forget the blocks that begin before the sequence *before*, whose messages retention has removed."""
        if before > self._kept:
            self._kept = before
            self._mine = {block: mine for block, mine in self._mine.items() if records_of(block)[0] >= before}
            self.differing = {member: block for member, block in self.differing.items() if block in self._mine}

    def read(self, found: BlockDigest) -> None:
        """Note what was read from the disk."""
        self._mine[found.block] = self._last = found
        if found.block >= self.newest.block:
            self.newest = found
        for member, told in list(self._told.items()):
            if told[0] == found.block:
                self.hear(member, *told)

    def hear(self, member: str, block: int, digest: str) -> None:
        """Note that *member* told its *digest* of a *block*; 0 for none."""
        self._told[member] = block, digest
        if (mine := self._mine.get(block)) is None:
            return
        if digest != mine.digest:
            self.differing[member] = block
            if not self._disputed:
                self._dispute(block)
        else:
            self.same[member] = max(block, self.same.get(member, 0))
            if self.differing.get(member) == block:
                del self.differing[member]
        if block == self._disputed:
            self._said[member] = digest

    @property
    def told(self) -> tuple[int, str]:
        """What a heartbeat tells: the block that was read last or, every other second, the one that differs."""
        disputed = self._mine.get(self._disputed) if self._alternate else None
        told = disputed or self._last
        return told.block, told.digest

    def find_damage(self) -> int:
        """The block of this log that is damaged; 0 if none is. Call this once a second."""
        others, self._alternate = self._others(), not self._alternate
        everything: tuple[dict[str, Any], ...] = (self.same, self.differing, self._told, self._said)
        for known in everything:
            for member in known.keys() - set(others):
                del known[member]
        mine = self._mine.get(self._disputed)
        if mine is None or self._disputed not in self.differing.values():
            self._dispute(next(iter(self.differing.values()), 0))
            return 0
        self._seconds += 1
        against = sum(digest != mine.digest for digest in self._said.values())
        is_damaged = (against > 0 and not mine.is_whole) or against * 2 > len(others) + 1
        return self._disputed if is_damaged and self._seconds >= TOLD else 0

    def _dispute(self, block: int) -> None:
        self._disputed, self._said, self._seconds = block, {}, 0
