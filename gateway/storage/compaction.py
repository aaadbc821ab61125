"""Compaction: merges the facts that retention left of many segments into one file, the front, and drops garbage.

Laws of this file. The log alone decides what stays, by the rules of `fact_lifetimes.py`: the kept records are read
for their references, then the facts from the newest to the oldest. A reference is one bit in a table of fixed size, so
that memory is bounded; two names that share a bit keep each other's facts, which is safe. A superseded fact is dropped
at once. An unreferenced fact is *released* first: it leaves the index, then the gateway's memory, so that the gateway
logs it again if it needs it; the records written until then are read before the fact leaves the log. The front is
written, synced and renamed; the rename makes it valid, and the files that it replaces stale; these are removed once the
rename is durable. A crash leaves the old state or the new one, and the index is repaired to agree with it. All of this
happens in a thread of its own that sleeps between short intervals of work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Final, NamedTuple, Protocol, TypeVar

from gateway.core.message import Message
from gateway.system.directories import sync_directory

from . import permissions
from .fact_lifetimes import Lifetime, Lifetimes, number_end
from .file_lines import lines_backward, lines_forward
from .index import Index
from .layout import FACTS_SUFFIX, TEMPORARY_PREFIX, Front, Layout
from .name_sets import NameFilter, SubjectSet
from .record import BadRecord, Fact, decode_body
from .segments import Segments, verify_line

MAX_RELEASED: Final = 20_000  # facts in one compaction; the rest stays until the next
INDEX_BATCH: Final = 1_000  # rows that the index deletes at once
LOOP_BATCH: Final = 100  # facts that the loop decides about in one turn
GRACE_SECONDS = 15.0  # until a message that still holds a forgotten peer is decrypted and logged
MAX_LAG: Final = 1_000  # records that may be read in the index's thread
WORK_SECONDS: Final = 0.002  # between two pauses
REST_FACTOR: Final = 4  # a pause is this many times as long as the work before it
POLL_SECONDS: Final = 0.1  # between two checks whether the gateway stops

T = TypeVar("T")


class FactCache(Protocol):
    """The facts that the running gateway holds in memory; called on the loop."""

    def in_use(self, facts: Sequence[Fact]) -> list[bool]:
        """Return, for each of *facts*, whether a connected peer needs it."""

    def forget(self, fact: Fact) -> None:
        """Remove *fact* from memory: it leaves the log."""

    def last_seq(self) -> int:
        """The sequence of the last appended record, on disk or not."""


class CompactionStopped(Exception):
    """The compaction ends early, because the gateway stops."""


class Sources(NamedTuple):
    """The files to merge, oldest first, and the *front* that they become."""

    files: list[Path]
    front: Front


class _Selection(NamedTuple):
    """Which lines of the sources are kept, by position, and which facts are unreferenced."""

    kept_lines: bytearray
    unreferenced: dict[int, Fact]  # by sequence


class Compaction:
    """Compacts once: `run` is called in a thread of its own, `stop` from any other.

    *post* runs a call on the loop. `run` raises `CompactionStopped` soon after `stop`.
    """

    def __init__(
        self,
        segments: Segments,
        index: Index,
        lifetimes: Lifetimes,
        cache: FactCache,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._segments = segments
        self._index = index
        self._lifetimes = lifetimes
        self._cache = cache
        self._post = post
        self._stopping = threading.Event()
        self._rested = 0.0

    def stop(self) -> None:
        """Make `run` end early; the next start removes what it leaves behind."""
        self._stopping.set()

    def sources(self) -> Sources | None:
        """The files that can be compacted; None if there are none."""
        layout = self._segments.layout
        files: list[Path] = []
        for place in range(len(layout.first_seqs) - 1):  # the newest says where the others end
            path = layout.file(self._segments.directory, place)
            if not path.name.endswith(FACTS_SUFFIX):
                break
            files.append(path)
        if not files:
            return None
        return Sources(files, Front(layout.first_seqs[0], layout.first_seqs[len(files)] - 1))

    def run(self, sources: Sources) -> None:
        """Merge the *sources* into the front. An index rebuilt meanwhile has dropped facts: it is rebuilt again."""
        rebuilds = self._index.rebuilds
        try:
            self._run(sources)
        finally:
            if self._index.rebuilds != rebuilds and not self._stopping.is_set():
                self._index.rebuild()

    def _run(self, sources: Sources) -> None:
        self._rested = monotonic()
        referenced, last, level = NameFilter(), sources.front.last, self._index.level
        self._collect_references(referenced, last, level)
        released = self._select(sources, referenced, None).unreferenced
        self._exclude_in_use(released)
        while (newest := self._index.level) - level > MAX_LAG:
            self._collect_references(referenced, level, newest)
            level = newest
        try:
            level = self._in_index(lambda: self._remove_from_index(released, referenced, level, last))
            self._release(released, referenced)
            newest = self._on_loop(self._cache.last_seq)
            self._wait_for(newest)
            self._collect_references(referenced, level, newest)
            selection = self._select(sources, referenced, released)
            kept = [fact for seq, fact in released.items() if seq not in selection.unreferenced]
            self._in_index(lambda: self._index.facts.restore(kept))
            self._write(sources, selection.kept_lines)
        except BaseException:
            self._index.schedule_repair()
            raise
        self._on_loop(partial(self._segments.use_front, sources.front))
        try:
            self._finish(sources, selection.kept_lines)
        except BaseException:
            self._index.schedule_repair()
            raise

    # Releasing facts

    def _exclude_in_use(self, released: dict[int, Fact]) -> None:
        """Remove the facts that are in use from *released*."""
        for part in _batches(released.values()):
            used = self._on_loop(partial(self._cache.in_use, part))
            for fact, is_used in zip(part, used, strict=True):
                if is_used:
                    del released[fact.seq]

    def _remove_from_index(self, released: dict[int, Fact], referenced: NameFilter, level: int, last: int) -> int:
        """Remove *released* from the index, in its thread, except for what was referenced since; return its level."""
        now = self._index.level
        self._collect_references(referenced, level, now)
        for fact in list(released.values()):
            if (lifetime := self._lifetimes.lifetime(fact)) is None or self._is_live(lifetime, referenced):
                del released[fact.seq]
        self._index.facts.remove(released.values(), last)
        return now

    def _release(self, released: dict[int, Fact], referenced: NameFilter) -> None:
        """Have the cache forget *released*, except for what is in use by now; wait until nobody can hold any of it."""
        for part in _batches(released.values()):
            used = self._on_loop(partial(self._forget_unused, part))
            for fact in used:
                if (lifetime := self._lifetimes.lifetime(fact)) is not None:
                    referenced.add((lifetime.subject,))
            if used:
                self._in_index(partial(self._index.facts.restore, used))
        if released and self._stopping.wait(GRACE_SECONDS):
            raise CompactionStopped

    def _forget_unused(self, facts: Sequence[Fact]) -> list[Fact]:
        """Forget those of *facts* that are not in use, and return the others; called on the loop."""
        used: list[Fact] = []
        for fact, is_used in zip(facts, self._cache.in_use(facts), strict=True):
            if is_used:
                used.append(fact)
            else:
                self._cache.forget(fact)
        return used

    def _is_live(self, lifetime: Lifetime, referenced: NameFilter) -> bool:
        return lifetime.referenced_as is None or referenced.any((lifetime.subject, *lifetime.referenced_as))

    # Deciding what stays

    def _collect_references(self, referenced: NameFilter, after: int, last: int) -> None:
        """Add the references of the records after sequence *after*, up to *last*, to *referenced*."""
        for line in self._segments.scan(after):
            self._rest()
            try:
                entry = decode_body(line.body)
            except BadRecord:
                continue  # reported by `Segments`
            if entry.seq > last:
                return
            referenced.add(self._lifetimes.references(entry))
            if isinstance(entry, Fact) and (lifetime := self._lifetimes.lifetime(entry)) is not None:
                referenced.add((lifetime.subject,))  # it is newer than what is to be compacted

    def _select(self, sources: Sources, referenced: NameFilter, released: dict[int, Fact] | None) -> _Selection:
        """Choose what stays, by what is *referenced*; given *released*, drop no other unreferenced fact."""
        count, first_start, number_limit = self._survey(sources)
        kept_lines, unreferenced, end = bytearray(count), dict[int, Fact](), 0
        with closing(SubjectSet()) as subjects:
            for place, line in zip(range(count - 1, -1, -1), lines_backward(sources.files), strict=True):
                self._rest()
                fact = _fact_on(line)
                if fact is None:
                    continue
                if fact.kind == "peer" and "first" in fact.fields:
                    kept_lines[place] = number_end(fact) > end
                    end = max(end, number_end(fact))
                    continue
                if not self._outlives_messages(fact, sources.front.last, first_start):
                    continue
                lifetime = self._lifetimes.lifetime(fact)
                if lifetime is not None and not subjects.add(lifetime.subject):
                    continue
                if lifetime is not None and not self._is_live(lifetime, referenced):
                    may_go = len(unreferenced) < MAX_RELEASED if released is None else fact.seq in released
                    if may_go and number_end(fact) <= number_limit:
                        unreferenced[fact.seq] = fact
                        continue
                kept_lines[place] = True
                referenced.add(self._lifetimes.references(fact))
        return _Selection(kept_lines, unreferenced)

    def _survey(self, sources: Sources) -> tuple[int, int, int]:
        """Count the lines; find the first `start`, and the first peer number beyond all blocks."""
        count = first_start = number_limit = 0
        for line in lines_forward(sources.files):
            self._rest()
            count += 1
            fact = _fact_on(line)
            if fact is not None and fact.kind == "start":
                first_start = first_start or fact.seq
            elif fact is not None and fact.kind == "peer" and "first" in fact.fields:
                number_limit = max(number_limit, number_end(fact))
        return count, first_start, number_limit

    def _outlives_messages(self, fact: Fact, last: int, first_start: int) -> bool:
        """Whether *fact* matters beyond the messages up to sequence *last*, which were retired."""
        match fact.kind:
            case "start":
                return fact.seq == first_start
            case "counts":
                return False
            case "form":
                return bool(fact.fields["of"] > last)
        return True

    # Writing the front

    def _write(self, sources: Sources, kept_lines: bytearray) -> None:
        """Write the *kept_lines* of the *sources* into the front, which counts from the rename on."""
        directory = self._segments.directory
        temporary = directory / f"{TEMPORARY_PREFIX}{sources.front.first:020d}"
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, permissions.FILE_MODE), "wb") as out:
            for line, stay in zip(lines_forward(sources.files), kept_lines, strict=True):
                self._rest()
                if stay:
                    out.write(line)
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(sources.front.path(directory))

    def _finish(self, sources: Sources, kept_lines: bytearray) -> None:
        """Remove the dropped facts from the index, and the files that this front or an earlier one replaced."""
        dropped = (line for line, stay in zip(lines_forward(sources.files), kept_lines, strict=True) if not stay)
        facts = (fact.seq for line in dropped if (fact := _fact_on(line)) is not None)
        while part := list(islice(facts, INDEX_BATCH)):
            self._in_index(partial(self._index.facts.drop, part))
        directory = self._segments.directory
        sync_directory(directory)
        for path in list(Layout.read(directory).stale(directory)):
            if path.name.endswith(FACTS_SUFFIX):
                path.unlink()
        sync_directory(directory)
        self._in_index(self._index.facts.finish)

    # Threads

    def _in_index(self, task: Callable[[], T]) -> T:
        return self._run_in(self._index.submit, task)

    def _on_loop(self, call: Callable[[], T]) -> T:
        return self._run_in(self._post, call)

    def _run_in(self, submit: Callable[[Callable[[], None]], None], call: Callable[[], T]) -> T:
        """Run *call* in another thread; return what it returns or raise what it raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        submit(run)
        while True:
            self._raise_if_stopping()
            with suppress(TimeoutError):
                return future.result(POLL_SECONDS)

    def _wait_for(self, seq: int) -> None:
        """Wait until everything up to *seq* is on disk and in the index."""
        while self._index.level < seq:
            self._raise_if_stopping()
            sleep(POLL_SECONDS / 10)

    def _rest(self) -> None:
        """Pause, if work has gone on for `WORK_SECONDS`, so that other threads get the interpreter."""
        if (worked := monotonic() - self._rested) > WORK_SECONDS:
            self._raise_if_stopping()
            sleep(min(worked, WORK_SECONDS) * REST_FACTOR)
            self._rested = monotonic()

    def _raise_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise CompactionStopped


def _fact_on(line: bytes) -> Fact | None:
    """The fact on *line*; None if the line is damaged, and the fact lost."""
    try:
        _, _, body = verify_line(line)
        entry = decode_body(body)
    except BadRecord:
        return None
    return None if isinstance(entry, Message) else entry


def _batches(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    every = iter(list(facts))
    while part := list(islice(every, LOOP_BATCH)):
        yield part
