"""The names of the log's files: which exist, and which of them are valid.

`.open-N.jsonl` is being written; `N.jsonl` is sealed and never changes; `N.facts.jsonl` has the facts of a retired
segment, and counts only once the segment is removed. `N-M.facts.jsonl`, the front, has what compaction kept of all
records from N to M: once it exists, every other facts file that begins in it is stale, and so is a front that ends
earlier. A name is never used twice, and nothing is appended to a file whose name does not begin with a dot.
"""

from __future__ import annotations

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
SEGMENT_BYTES = 64 << 20  # bytes of a segment, after which it is sealed; the default of `log.segment_bytes`

T = TypeVar("T")

_NAME = re.compile(r"(?:\.open-)?(\d{20})(?:\.facts)?\.jsonl")
_FRONT = re.compile(r"(\d{20})-(\d{20})\.facts\.jsonl")


class Front(NamedTuple):
    """What compaction wrote: a file with the facts of all records from *first* to *last*."""

    first: int
    last: int

    def path(self, directory: Path) -> Path:
        """Its file."""
        return directory / f"{self.first:020d}-{self.last:020d}{FACTS_SUFFIX}"


class Layout(NamedTuple):
    """The files that count: their *first_seqs*, in order; the *front*, if there is one, is the first of them."""

    first_seqs: list[int]
    front: Front | None

    @classmethod
    def read(cls, directory: Path) -> Layout:
        """Read the layout of *directory*."""
        names = [path.name for path in directory.iterdir()]
        matches = (_FRONT.fullmatch(name) for name in names)
        fronts = [Front(int(match[1]), int(match[2])) for match in matches if match]
        front = max((each for each in fronts if each.first <= each.last <= MAX_SEQ), key=_by_last, default=None)
        last = 0 if front is None else front.last
        others = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        found = {first for first in others if last < first <= MAX_SEQ}
        return cls(sorted(found if front is None else found | {front.first}), front)

    def stale(self, directory: Path) -> Iterator[Path]:
        """The files that a crash left behind: facts that the front has as well, unfinished files, and segments that
        were retired but not removed.
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
        """The place in `first_seqs` of the file that holds record *seq*; 0 if it is before all."""
        return max(bisect_right(self.first_seqs, seq) - 1, 0)

    def end(self, place: int) -> int:
        """The sequence that ends the file at *place*: the first one of the next file."""
        return self.first_seqs[place + 1] if place + 1 < len(self.first_seqs) else BEYOND_ALL

    def file(self, directory: Path, place: int) -> Path:
        """The file at a *place* of `first_seqs`, by the name that counts; a sealed segment's name if there is none."""
        if place == 0 and self.front is not None:
            return self.front.path(directory)
        candidates = paths(directory, self.first_seqs[place])
        return next((path for path in candidates if path.exists()), candidates[1])


def front_of(path: Path) -> Front | None:
    """The front whose file is *path*, by its name; None if it is not a front."""
    match = _FRONT.fullmatch(path.name)
    return None if match is None else Front(int(match[1]), int(match[2]))


def is_front(path: Path) -> bool:
    """Whether *path* is a front, by its name."""
    return front_of(path) is not None


def _by_last(front: Front) -> tuple[int, int]:
    return front.last, -front.first


def first_seqs(directory: Path) -> list[int]:
    """The first sequence of every segment in *directory*, in order."""
    return Layout.read(directory).first_seqs


def paths(directory: Path, first: int) -> tuple[Path, Path, Path]:
    """The paths a segment may have: open, sealed, or only its facts. The first of them that exists counts."""
    name = f"{first:020d}"
    return (
        directory / f"{OPEN_PREFIX}{name}{SUFFIX}",
        directory / f"{name}{SUFFIX}",
        directory / f"{name}{FACTS_SUFFIX}",
    )


def walk(directory: Path, opened: Callable[[Path], T]) -> Iterator[tuple[T, Path, int, int]]:
    """Yield each file that counts, *opened*; its path, the first sequence to read in it, and where the next begins.

    Retention may change *directory* meanwhile: every record that stays is yielded, and none twice.
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
