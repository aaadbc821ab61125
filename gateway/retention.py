"""Retention: the oldest messages go, the facts stay.

Laws of this file. Whole sealed segments are retired, oldest first, never the newest: its successor says where it
ended. A segment's facts are on disk, line by line as they were, before its messages leave the index, and those have
left it before its file is removed. So after a crash the segment is either whole, and retired again, or gone.
All of it happens in the index's thread.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from . import modes
from .index import Index
from .record import BadRecord
from .segments import Fault, Segments, head, paths, sync_directory, trusted


class Keep(NamedTuple):
    """What is kept: messages no older than *age* (ms), and the newest *bytes* of segments; None keeps all."""

    age: int | None = None
    bytes: int | None = None


class Retention:
    """Retires segments when `tick` is called, say once a minute.

    *mark* logs any fact: it gives the newest segment a successor where nothing else is said any more.
    """

    def __init__(
        self,
        segments: Segments,
        index: Index,
        keep: Keep,
        clock: Callable[[], int],
        *,
        post: Callable[[Callable[[], None]], None],
        mark: Callable[[], object],
        on_fault: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        self._segments = segments
        self._index = index
        self._keep = keep
        self._clock = clock
        self._post = post
        self._mark = mark
        self._on_fault = on_fault
        self._busy = False
        self._ends: dict[int, int] = {}  # when the newest record of a segment was accepted

    def tick(self) -> None:
        """Retire what is due; in the index's thread, so that nothing waits for it."""
        if not self._busy:
            self._busy = True
            self._index.do(partial(self._retire_all, self._index.synced_seq))

    def _retire_all(self, applied: int) -> None:
        try:
            for first, end in list(self.due(applied)):
                self.retire(first, end)
            if self._newest_is_due():
                self._post(self._marked)
        except (OSError, sqlite3.Error) as error:
            self._post(partial(self._on_fault, error))
        finally:
            self._post(self._done)

    def due(self, applied: int) -> Iterator[tuple[int, int]]:
        """The first sequence of each segment to retire, and of the one after it; up to *applied* all is indexed."""
        firsts = list(self._segments.firsts)
        sizes = {first: size for first in firsts if (size := self._size(first)) is not None}
        total = sum(sizes.values())
        for first, end in pairwise(firsts):
            if first not in sizes:
                continue  # retired already
            too_much = self._keep.bytes is not None and total > self._keep.bytes
            if end - 1 > applied or not self._sealed(first) or not (too_much or self._old(first)):
                return
            total -= sizes[first]
            yield first, end

    def retire(self, first: int, end: int) -> None:
        """Leave only the facts of the segment that begins with *first* and ends before *end*."""
        _, sealed, facts = paths(self._segments.directory, first)
        temporary = sealed.with_name(f".retire-{first:020d}")
        temporary.touch(modes.FILE)
        with sealed.open("rb") as source, temporary.open("wb") as kept:
            kept.writelines(self._facts(sealed, source))
            kept.flush()
            os.fsync(kept.fileno())
        temporary.rename(facts)
        sync_directory(facts.parent)
        self._index.prune(end)
        sealed.unlink()
        sync_directory(facts.parent)
        self._ends.pop(first, None)
        self._post(partial(self._segments.forget, first))

    def _facts(self, path: Path, lines: Iterator[bytes]) -> Iterator[bytes]:
        offset = 0
        for line in lines:
            try:
                trusted(line)
            except BadRecord as error:
                self._post(
                    partial(self._segments.fault, Fault(path.name, offset, f"lost when it was retired: {error}"))
                )
            else:
                if is_fact(line):
                    yield line
            offset += len(line)

    def _old(self, first: int) -> bool:
        if self._keep.age is None:
            return False
        if first not in self._ends:
            line, _ = self._segments.last_line(first)
            self._ends[first] = head(line)[1] if line else 0
        return self._ends[first] < self._clock() - self._keep.age

    def _newest_is_due(self) -> bool:
        firsts = self._segments.firsts
        return bool(firsts) and self._sealed(firsts[-1]) and self._old(firsts[-1])

    def _sealed(self, first: int) -> bool:
        return self._segments.path(first) == paths(self._segments.directory, first)[1]

    def _size(self, first: int) -> int | None:
        """The bytes of a segment that is not retired, which may be sealed while we look."""
        for path in paths(self._segments.directory, first)[:2]:
            with suppress(FileNotFoundError):
                return path.stat().st_size
        return None

    def _marked(self) -> None:
        self._mark()

    def _done(self) -> None:
        self._busy = False


def is_fact(line: bytes) -> bool:
    """Whether a record's line is a fact; messages say their channel and id before they say their kind."""
    return line.split(b",", 3)[2].startswith(b'"kind":')
