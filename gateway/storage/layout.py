"""The names of the log's files: which there are, and which of them count.

`.open-N.jsonl` is being written; `N.jsonl` is sealed and never changes; `N.facts.jsonl` is what retention left of a
segment, and counts only once the segment is gone. `N-M.facts.jsonl`, the front, is what compaction left of all records
from N to M: once it is there, every other facts file that begins in it is stale, and so is a front that ends earlier.
A name is never used twice, a visible file is never appended to.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from .record_schema import MAX_SEQ

OPEN_PREFIX = ".open-"
SUFFIX = ".jsonl"
FACTS_SUFFIX = ".facts.jsonl"
TEMPORARY_PREFIX = ".retire-"  # how the name of a facts file begins that is being written
BEYOND_ALL = 1 << 62
SEGMENT_BYTES = 64 << 20  # bytes of a segment that is written at once

T = TypeVar("T")

_NAME = re.compile(r"(?:\.open-)?(\d{20})(?:\.facts)?\.jsonl")
_FRONT = re.compile(r"(\d{20})-(\d{20})\.facts\.jsonl")


class Front(NamedTuple):
    """What compaction left: a file with the facts of all records from *first* to *last*."""

    first: int
    last: int

    def path(self, directory: Path) -> Path:
        """Its file."""
        return directory / f"{self.first:020d}-{self.last:020d}{FACTS_SUFFIX}"


class Layout(NamedTuple):
    """The files that count: the *first_seqs* of all, in order; the *front* is the first of them, where there is one."""

    first_seqs: list[int]
    front: Front | None

    @classmethod
    def read(cls, directory: Path) -> Layout:
        """How it is in *directory*."""
        names = [path.name for path in directory.iterdir()]
        matches = (_FRONT.fullmatch(name) for name in names)
        fronts = [Front(int(match[1]), int(match[2])) for match in matches if match]
        front = max((each for each in fronts if each.first <= each.last <= MAX_SEQ), key=_by_last, default=None)
        last = 0 if front is None else front.last
        others = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        found = {first for first in others if last < first <= MAX_SEQ}
        return cls(sorted(found if front is None else found | {front.first}), front)

    def stale(self, directory: Path) -> Iterator[Path]:
        """What a crash left behind: facts that are in the front as well, files that were not finished, and segments
        that were not removed although their facts are on disk.
        """
        for path in directory.iterdir():
            match = _FRONT.fullmatch(path.name) or _NAME.fullmatch(path.name)
            covered = match and self.front and path.name.endswith(FACTS_SUFFIX) and int(match[1]) <= self.front.last
            first = int(match[1]) if match else BEYOND_ALL
            _, sealed, facts = paths(directory, first)
            retired = path == sealed and first < self.first_seqs[-1] and facts.exists()
            if path.name.startswith(TEMPORARY_PREFIX) or (covered and path != self.file(directory, 0)) or retired:
                yield path

    def place(self, seq: int) -> int:
        """Which of `first_seqs` is of the file that holds record *seq*, or of the first file there is."""
        return max(bisect_right(self.first_seqs, seq) - 1, 0)

    def end(self, place: int) -> int:
        """Where the file at a *place* of `first_seqs` ends: the sequence that the next one begins with."""
        return self.first_seqs[place + 1] if place + 1 < len(self.first_seqs) else BEYOND_ALL

    def file(self, directory: Path, place: int) -> Path:
        """The file at a *place* of `first_seqs`, by the name that counts; a sealed segment's name if there is none."""
        if place == 0 and self.front is not None:
            return self.front.path(directory)
        candidates = paths(directory, self.first_seqs[place])
        return next((path for path in candidates if path.exists()), candidates[1])


def is_front(path: Path) -> bool:
    """Whether *path* is a front, by its name."""
    return _FRONT.fullmatch(path.name) is not None


def _by_last(front: Front) -> tuple[int, int]:
    return front.last, -front.first


def first_seqs(directory: Path) -> list[int]:
    """The first sequence of every segment in *directory*, in order."""
    return Layout.read(directory).first_seqs


def paths(directory: Path, first: int) -> tuple[Path, Path, Path]:
    """Where the segment of *first* may be: open, sealed, or only its facts. The first of them that exists counts."""
    name = f"{first:020d}"
    return (
        directory / f"{OPEN_PREFIX}{name}{SUFFIX}",
        directory / f"{name}{SUFFIX}",
        directory / f"{name}{FACTS_SUFFIX}",
    )


def walk(directory: Path, opened: Callable[[Path], T]) -> Iterator[tuple[T, Path, int, int]]:
    """Each file that counts, *opened*; its path, the first sequence that is due in it, and where the next one begins.

    What retention does to *directory* meanwhile is followed: nothing that stays is left out, and nothing comes twice.
    """
    layout, due, missed = Layout.read(directory), 0, 0
    newest = max(layout.first_seqs, default=0)
    while layout.first_seqs and due <= newest:
        place = layout.place(due)
        path, end = layout.file(directory, place), layout.end(place)
        try:
            found = opened(path)
        except FileNotFoundError:
            if missed == len(layout.first_seqs):
                raise
            layout, missed = Layout.read(directory), len(layout.first_seqs)
            continue
        yield found, path, max(layout.first_seqs[place], due), end
        due, missed = end, 0


def sync_directory(path: Path) -> None:
    """Make renames and new names in *path* durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
