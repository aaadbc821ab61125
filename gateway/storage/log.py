"""The log: everything that was accepted, in order, on disk before the acceptance is confirmed.

Laws of this file. `extend` takes entries and returns at once; one thread writes the entries that have gathered and
syncs them, and only then are the `when_synced` callbacks called, on the event loop, in order of sequence. A batch is
one write and one fsync, however many entries it has. After a failed write or sync the segment is cut at its last synced
offset and the same batch goes to a new one; until that succeeds the log is `congested` and `failing`, and nothing is
accepted. A log that is congested but not failing is merely slow. Entries that wait while the log fails have been
delivered already, so they are neither refused nor accepted: after `UNCERTAIN_SECONDS` their publishers are told that
the outcome is unknown. Sequences are dense, and `time` never decreases, whatever the clock does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import accumulate, count
from time import monotonic, perf_counter, sleep
from typing import NamedTuple

from gateway.core.histogram import SECONDS, SIZES, Histogram

from . import permissions
from .layout import SEGMENT_BYTES
from .record import Entry, Fact, encode
from .segments import Segments

MAX_UNSYNCED_BYTES = 16 << 20  # may wait for the disk; beyond it publishers are not read
CROWDED_BYTES = 4 << 20  # beyond it each publisher gets only its share, so that there is room for the others
SLOW_BYTES, SLOW_SECONDS = 1 << 20, 0.05  # so many bytes are crowded as well if the disk takes longer than this
LINGER_SECONDS = 0.02  # during which a batch may gather while nothing waits for it
RETRY_SECONDS = 1.0  # the longest pause before a failed batch is tried again
UNCERTAIN_SECONDS = 5.0  # of failing, after which waiting requests are told that the outcome is unknown

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When a segment is sealed: at a size, at an age (s) if it has enough records or bytes, or at a maximum age."""

    bytes: int = SEGMENT_BYTES
    seconds: float = 60.0
    min_records: int = 1_000
    min_bytes: int = 1_000_000
    max_seconds: float = 600.0


class SyncedBatch(NamedTuple):
    """Entries that are on disk, and the offset of each of them in its segment."""

    entries: Sequence[Entry]
    offsets: Sequence[int]


class _Waiter(NamedTuple):
    """A callback that waits for a sequence; those for the same sequence are called in order."""

    seq: int
    order: int
    callback: Callable[[], None]
    otherwise: Callable[[], None] | None


class Log:
    """Appends entries and calls back when they are on disk.

    *post* runs a callable on the event loop from the writer's thread. There, *on_synced* is called with each batch
    before its callbacks; *on_resume* when the log is no longer congested, and when it begins to fail, so that paused
    publishers are read and refused; *on_fault* with the error of a failed write. `failing` says why the last write
    failed; it is None once one succeeds.
    """

    def __init__(
        self,
        segments: Segments,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], int],
        *,
        sealing: SealPolicy | None = None,
        on_fault: Callable[[OSError], None] = lambda _error: None,
    ) -> None:
        self.segments = segments
        self.next_seq = segments.next_seq
        self.synced_seq = segments.next_seq - 1
        self.congested = False
        self.failing: str | None = None
        self.is_complete = True  # whether everything that was appended was written, once it is closed
        self.held = False  # by `hold`: another gateway's turn
        self._why_held: str | None = None
        self._disk_error: str | None = None
        self.divert: Callable[[Sequence[Entry], list[bytes]], None] = self.put  # takes what was appended
        self.on_synced: Callable[[SyncedBatch], None] = lambda _batch: None
        self.on_resume: Callable[[], None] = lambda: None
        self._post = post
        self._clock = clock
        self._on_fault = on_fault
        self._writer = _SegmentWriter(segments, sealing or SealPolicy())
        self.sync_seconds, self.batch_records = self._writer.sync_seconds, self._writer.batch_records
        self._queue: deque[tuple[Sequence[Entry], list[bytes]]] = deque()  # its popleft is atomic, so no lock
        self._unsynced = 0
        self._waiting_since = 0.0  # when the oldest unsynced batch began to wait, on the monotonic clock
        self._time = segments.last_time
        self._waiters: list[_Waiter] = []
        self._failed_since = 0.0
        self._order = count()
        self._has_entries = threading.Event()
        self._has_waiters = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)

    @property
    def crowded(self) -> bool:
        """Whether so much waits for the disk, or for so long, that each publisher should get only its share."""
        waiting = self._unsynced
        return waiting > CROWDED_BYTES or (waiting > SLOW_BYTES and monotonic() - self._waiting_since > SLOW_SECONDS)

    @property
    def unsynced_bytes(self) -> int:
        """How many bytes wait for the disk."""
        return self._unsynced

    def start(self) -> None:
        """Start the writer's thread."""
        self._thread.start()

    def append(self, entry: Entry) -> None:
        """Append *entry*, whose `seq` must be `next_seq` (`ValueError` if not); it is written soon."""
        self.extend((entry,))

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append *entries*, a fact or messages of one channel, all or none.

        Their `seq`s must be `next_seq` and those that follow; `ValueError` if not.
        """
        time, seq = self._time, self.next_seq
        lines: list[bytes] = []  # `list[bytes]()` takes 0.8 us
        for entry in entries:
            if entry.seq != seq:
                raise ValueError(f"record {seq} comes next, not {entry.seq}")
            if entry.time < time:
                entry.time = time
            time = entry.time
            seq += 1
            lines.append(encode(entry))
        self._time, self.next_seq = time, seq
        self.divert(entries, lines)

    def adopt(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Append *entries* that another gateway appended, as the *lines* that it wrote, which follow the last one."""
        self._time, self.next_seq = entries[-1].time, entries[-1].seq + 1
        self.put(entries, lines)

    def put(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Give the *lines* of *entries* to the writer."""
        self._queue.append((entries, lines))
        if not self._unsynced:
            self._waiting_since = monotonic()
        self._unsynced += sum(map(len, lines))
        if self._unsynced > MAX_UNSYNCED_BYTES:
            self.congested = True
        if not self._has_entries.is_set():
            self._has_entries.set()

    def hurry(self) -> None:
        """Write what was `put` at once, if anybody waits for it."""
        if self._waiters:
            self._has_waiters.set()

    def hold(self, why: str | None) -> None:
        """Accept nothing until `release`: publishers wait or, if it is told *why*, are refused."""
        self.held, self._why_held, self.congested = True, why, True
        was, self.failing = self.failing, self._disk_error or why
        if why is not None and was is None:
            self._failed_since = monotonic()
            self.on_resume()
        elif why is not None and monotonic() - self._failed_since >= UNCERTAIN_SECONDS:
            self._report_uncertain()

    def release(self) -> None:
        """Accept again, unless the disk is failing or slow."""
        self.held, self._why_held, self.failing = False, None, self._disk_error
        if self._disk_error is None and self._unsynced <= MAX_UNSYNCED_BYTES:
            self.congested = False
            self.on_resume()

    def fact(self, kind: str, fields: dict[str, object]) -> Fact:
        """Append a fact, dated now."""
        fact = Fact(kind, fields, self.next_seq, self._clock())
        self.append(fact)
        return fact

    def when_synced(
        self,
        seq: int,
        callback: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
        *,
        hurry: bool = True,
    ) -> None:
        """Call *callback* on the loop once everything up to *seq* is on disk; at once if it is already.

        If the disk fails for `UNCERTAIN_SECONDS`, *otherwise* is called instead: the entries may be accepted later, or
        never. Without *otherwise* the wait goes on. Without *hurry* the batch may go on gathering.
        """
        if seq <= self.synced_seq:
            callback()
            return
        heappush(self._waiters, _Waiter(seq, next(self._order), callback, otherwise))
        if hurry and not self._has_waiters.is_set():
            self._has_waiters.set()

    def close(self) -> None:
        """Write the queued entries, seal the segment and stop; callbacks that are due are still posted."""
        self._stopping = True
        self._has_waiters.set()
        self._has_entries.set()
        self._thread.join()
        self.segments.close()

    # The writer's thread

    def _run(self) -> None:
        while not (self._stopping and not self._queue):
            if self._has_entries.wait(timeout=1.0) and not self._stopping:
                self._has_waiters.wait(LINGER_SECONDS)
            self._has_waiters.clear()
            self._has_entries.clear()
            self._commit()
        self._seal_with(self._writer.seal)

    def _commit(self) -> None:
        """Write and sync everything that is queued, retrying until it succeeds; after `close`, for a moment only."""
        entries: list[Entry] = []
        lines: list[bytes] = []
        for _ in range(len(self._queue)):
            more, theirs = self._queue.popleft()
            entries += more
            lines += theirs
        delay = RETRY_SECONDS / 16
        while entries:
            try:
                synced = self._writer.write(entries, lines)
            except OSError as error:
                self._post(partial(self._write_failed, error))
                if self._stopping and delay >= RETRY_SECONDS:
                    self.is_complete = False
                    self._queue.clear()  # none of it was accepted, and later entries must not take its place
                    return
                sleep(delay)
                delay = min(delay * 2, RETRY_SECONDS)
            else:
                self._post(partial(self._written, *synced))
                break
        self._seal_with(self._writer.seal_if_due)
        self.segments.reserve.refill()

    def _seal_with(self, seal: Callable[[], None]) -> None:
        """Call *seal*; the segment's records are on disk already, so a failure is only reported."""
        try:
            seal()
        except OSError as error:
            self._post(partial(self._on_fault, error))

    # On the loop

    def _write_failed(self, error: OSError) -> None:
        first_failure = self._disk_error is None
        if first_failure:
            self._failed_since = monotonic()
        self._disk_error = error.strerror or str(error)
        self.congested, self.failing = True, self._disk_error
        self._on_fault(error)
        if first_failure:
            self.on_resume()
        elif monotonic() - self._failed_since >= UNCERTAIN_SECONDS:
            self._report_uncertain()

    def _report_uncertain(self) -> None:
        """Call `otherwise` of each waiter that has one: the outcome is unknown."""
        uncertain = [waiting for waiting in self._waiters if waiting.otherwise is not None]
        self._waiters = [waiting for waiting in self._waiters if waiting.otherwise is None]
        heapify(self._waiters)
        for waiting in sorted(uncertain):
            assert waiting.otherwise is not None
            waiting.otherwise()

    def _written(self, batch: SyncedBatch, size: int) -> None:
        self._disk_error, self.failing = None, self._why_held
        self._unsynced -= size
        self._waiting_since = monotonic()
        self.synced_seq = batch.entries[-1].seq
        self.on_synced(batch)
        while self._waiters and self._waiters[0].seq <= self.synced_seq:
            callback = heappop(self._waiters).callback
            try:
                callback()
            except Exception:  # a bug in the callback; the others are called all the same
                logger.exception("a callback that waited for the disk failed; the others are called")
        if self.congested and not self.held and self._unsynced <= MAX_UNSYNCED_BYTES // 2:
            self.congested = False
            self.on_resume()


class _SegmentWriter:
    """Writes batches into the open segment, in the writer's thread."""

    def __init__(self, segments: Segments, sealing: SealPolicy) -> None:
        self._segments = segments
        self._sealing = sealing
        self._file = -1
        self._first = self._offset = self._records = 0
        self._opened_at = 0.0
        self.sync_seconds, self.batch_records = Histogram(SECONDS), Histogram(SIZES)

    def write(self, entries: Sequence[Entry], lines: Sequence[bytes]) -> tuple[SyncedBatch, int]:
        """Write and sync the *lines* of *entries*; return their offsets, and how many bytes they have.

        After an `OSError` none of them counts, and the caller may try again.
        """
        if self._file < 0:
            self._open(entries[0].seq)
        data = b"".join(lines)
        try:
            _write_all(self._file, data)
            begin = perf_counter()
            os.fdatasync(self._file)
        except OSError:
            self._abandon()
            raise
        self.sync_seconds.observe(perf_counter() - begin)
        self.batch_records.observe(len(lines))
        *offsets, self._offset = accumulate(map(len, lines), initial=self._offset)
        self._records += len(lines)
        return SyncedBatch(entries, offsets), len(data)

    def seal_if_due(self) -> None:
        """Seal the segment if its policy says so."""
        rule, age = self._sealing, monotonic() - self._opened_at
        worth = self._records >= rule.min_records or self._offset >= rule.min_bytes
        due = self._offset >= rule.bytes or (age >= rule.seconds and worth) or age >= rule.max_seconds
        if self._file >= 0 and due:
            self.seal()

    def seal(self) -> None:
        """Sync and seal the open segment, if there is one; after an `OSError` it stays open until the next start."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        try:
            os.fsync(file)
        finally:
            os.close(file)
        self._segments.seal(self._first)

    def _open(self, first: int) -> None:
        opening = partial(
            os.open, self._segments.open_path(first), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, permissions.FILE_MODE
        )
        file = self._segments.reserve.run(opening)
        try:
            self._segments.sync()
        except OSError:
            os.close(file)
            raise
        self._file, self._first, self._offset, self._records, self._opened_at = file, first, 0, 0, monotonic()
        self._segments.add(first)

    def _abandon(self) -> None:
        """Cut the segment at its last synced offset, and seal it; if that fails, the next start does it."""
        file, self._file = self._file, -1
        try:
            os.ftruncate(file, self._offset)
            if self._records:
                os.fsync(file)
                self._segments.seal(self._first)
        except OSError:
            pass  # it keeps its open name: `Segments` cuts it at the next segment's first sequence
        finally:
            os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
