"""Retention: retires the oldest messages, and then the facts that nothing references without them.

Laws of this file. Whole sealed segments are retired, oldest first, never the newest: its successor says where it ends.
A segment's facts are copied to a file, line by line, and synced before its messages leave the index, and its own file
is removed after that. So a crash leaves the segment whole, and it is retired again, or beside its facts, and the next
start removes it. All of this happens in the index's thread. The facts are compacted in another thread
(`gateway.storage.compaction`), once as many bytes of them have gathered as the last compaction left.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gateway.system.directories import sync_directory

from . import permissions
from .compaction import Compaction, CompactionStopped, Sources
from .index import Index
from .layout import TEMPORARY_PREFIX, is_front, paths
from .record import BadRecord
from .segments import Fault, Segments, parse_header, verify_line

MIN_FACTS_BYTES = 1 << 20  # of facts that gather before they are compacted
MAX_FACTS_FILES = 1024  # this many files are compacted, however small they are


class RetentionLimits(NamedTuple):
    """What is kept: messages no older than *age* (ms), and the newest *bytes* of segments; None keeps all."""

    age: int | None = None
    bytes: int | None = None


class Retention:
    """Retires segments when `tick` is called, say once a minute.

    *append_marker* logs any fact: it gives the newest segment a successor when nothing else is logged. *compaction*
    runs once *min_facts_bytes* of facts have gathered since its last run, and at least as many as it left then.
    """

    def __init__(
        self,
        segments: Segments,
        index: Index,
        limits: RetentionLimits,
        clock: Callable[[], int],
        *,
        post: Callable[[Callable[[], None]], None],
        append_marker: Callable[[], object],
        compaction: Compaction | None = None,
        min_facts_bytes: int = MIN_FACTS_BYTES,
    ) -> None:
        self._segments = segments
        self._index = index
        self.limits = limits  # may be replaced at any time
        self._clock = clock
        self._post = post
        self._append_marker = append_marker
        self._compaction = compaction
        self._min_facts_bytes = min_facts_bytes
        # Called on the loop: with what failed; and, after a run, with the number of retired segments and the first
        # sequence that is kept.
        self.on_fault: Callable[[Exception], None] = lambda _error: None
        self.on_retired: Callable[[int, int], None] = lambda _segments, _first_kept: None
        self._thread: threading.Thread | None = None
        self.compacting = False
        self.facts_bytes = 0  # in the files that retention left, at the last tick
        self._busy = False
        self._last_times: dict[int, int] = {}  # when the newest record of a segment was accepted

    def tick(self) -> None:
        """Retire what is due, in the index's thread."""
        if not self._busy:
            self._busy = True
            self._index.submit(partial(self._retire_all, self._index.synced_seq))

    def _retire_all(self, applied: int) -> None:
        sources = None
        try:
            if due := list(self.due(applied)):
                for first, end in due:
                    self.retire(first, end)
                self._post(partial(self.on_retired, len(due), due[-1][1]))
            if self._is_newest_expired():
                self._post(self._append_marker_fact)
            sources = self._sources_if_worthwhile()
        except (OSError, sqlite3.Error) as error:
            self._post(partial(self.on_fault, error))
        self._post(partial(self._finish_tick, sources))

    def stop(self) -> None:
        """Stop a compaction, and wait for its thread."""
        if self._compaction is not None:
            self._compaction.stop()
        if self._thread is not None:
            self._thread.join()

    def _finish_tick(self, sources: Sources | None) -> None:
        """Allow the next tick, and compact the *sources*, if any, in a thread."""
        self._busy = False
        if sources is not None:
            self.compacting = True
            self._thread = threading.Thread(target=self._compact, args=(sources,), name="compaction", daemon=True)
            self._thread.start()

    def _sources_if_worthwhile(self) -> Sources | None:
        """The files of facts, if enough of them are not in the front yet; else None."""
        sources = None if self._compaction is None or self.compacting else self._compaction.sources()
        if sources is None:
            return None
        front, *_ = sizes = [path.stat().st_size for path in sources.files]
        before = front if is_front(sources.files[0]) else 0
        self.facts_bytes = sum(sizes)
        is_worth = self.facts_bytes - before >= max(self._min_facts_bytes, before) or len(sizes) >= MAX_FACTS_FILES
        return sources if is_worth else None

    def _compact(self, sources: Sources) -> None:
        assert self._compaction is not None
        try:
            self._compaction.run(sources)
            self.facts_bytes = sources.front.path(self._segments.directory).stat().st_size
        except CompactionStopped:
            return
        except Exception as error:
            self._post(partial(self.on_fault, error))
        self._post(self._finish_compaction)

    def due(self, applied: int) -> Iterator[tuple[int, int]]:
        """The first sequence of each segment to retire, and of its successor; records up to *applied* are indexed."""
        first_seqs = list(self._segments.first_seqs)
        sizes = {first: size for first in first_seqs if (size := self._size(first)) is not None}
        total = sum(sizes.values())
        for first, end in pairwise(first_seqs):
            if first not in sizes:
                continue  # retired already
            too_much = self.limits.bytes is not None and total > self.limits.bytes
            if end - 1 > applied or not self._is_sealed(first) or not (too_much or self._is_expired(first)):
                return
            total -= sizes[first]
            yield first, end

    def retire(self, first: int, end: int) -> None:
        """Replace the segment that begins with *first* and ends before *end* by a file of its facts."""
        _, sealed, facts = paths(self._segments.directory, first)
        temporary = sealed.with_name(f"{TEMPORARY_PREFIX}{first:020d}")
        temporary.touch(permissions.FILE_MODE)
        with sealed.open("rb") as source, temporary.open("wb") as kept:
            kept.writelines(self._facts(sealed, source))
            kept.flush()
            os.fsync(kept.fileno())
        temporary.rename(facts)
        sync_directory(facts.parent)
        self._segments.retire(end)
        self._index.prune(end)
        sealed.unlink()
        sync_directory(facts.parent)
        self._last_times.pop(first, None)
        self._post(partial(self._segments.close_reader, first))

    def _facts(self, path: Path, lines: Iterator[bytes]) -> Iterator[bytes]:
        offset = 0
        for line in lines:
            try:
                verify_line(line)
            except BadRecord as error:
                self._post(
                    partial(self._segments.report, Fault(path.name, offset, f"lost when it was retired: {error}"))
                )
            else:
                if is_fact(line):
                    yield line
            offset += len(line)

    def _is_expired(self, first: int) -> bool:
        if self.limits.age is None:
            return False
        if first not in self._last_times:
            line, _ = self._segments.last_line(first)
            self._last_times[first] = parse_header(line)[1] if line else 0
        return self._last_times[first] < self._clock() - self.limits.age

    def _is_newest_expired(self) -> bool:
        first_seqs = self._segments.first_seqs
        return bool(first_seqs) and self._is_sealed(first_seqs[-1]) and self._is_expired(first_seqs[-1])

    def _is_sealed(self, first: int) -> bool:
        return self._segments.path(first) == paths(self._segments.directory, first)[1]

    def _size(self, first: int) -> int | None:
        """The size of a segment in bytes, None if it is retired; it may be sealed during the call."""
        for path in paths(self._segments.directory, first)[:2]:
            with suppress(FileNotFoundError):
                return path.stat().st_size
        return None

    def _append_marker_fact(self) -> None:
        self._append_marker()

    def _finish_compaction(self) -> None:
        self.compacting = False


def is_fact(line: bytes) -> bool:
    """Whether a record's line is a fact: a message has its channel and id before its kind."""
    return line.split(b",", 3)[2].startswith(b'"kind":')
