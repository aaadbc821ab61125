"""The index: SQLite tables for queries of the log. It can be deleted and is rebuilt from the log.

Laws of this file. The index contains the positions of records, never their content. One thread applies entries, in
batches, once they are synced. If the file is damaged, at the start or later, that thread rebuilds it from the log;
until it has caught up nothing is read from it, and `trouble` says so. `gateway.storage.index_schema` defines the
tables, `gateway.storage.index_rows` what a record adds to them, `gateway.storage.index_queries` the queries,
`gateway.storage.index_file` the SQLite file, and `gateway.storage.fact_index` what compaction changes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from time import sleep
from typing import Any

from gateway.core.errors import Unavailable
from gateway.core.message import MessageIds

from . import word_index
from .fact_index import FactIndex
from .fact_lifetimes import number_end
from .index_file import META_VALUE, Tables, is_corruption, is_environmental
from .index_queries import Lookup
from .index_rows import IndexedAdapter, adapter_schema, fact_rows, id_rows, record_rows
from .log import SyncedBatch
from .record import BadRecord, Entry, Fact, decode_untrusted_body
from .segments import Fault, Segments

GATHER_SECONDS = 0.1  # between two batches while entries keep coming
BATCH_ENTRIES = 2_000  # in one transaction
_EMPTY_BATCH = SyncedBatch((), ())
RETRY_SECONDS = 1.0  # until a failed batch is tried again; queries find its entries in memory meanwhile


class Index(Lookup):
    """Indexes the log and answers queries about it.

    *post* runs a callable on the loop; with *search* the words of messages are indexed (`word_index.py`). Call
    `catch_up` before `start`: it makes the tables agree with the log.
    """

    def __init__(
        self,
        path: Path,
        segments: Segments,
        ids: MessageIds,
        adapters: Sequence[IndexedAdapter] = (),
        post: Callable[[Callable[[], None]], None] = lambda call: call(),
        *,
        search: bool = False,
    ) -> None:
        schema = adapter_schema(adapters) + (word_index.SCHEMA if search else "")
        super().__init__(Tables(path, schema), segments, ids)
        self.path = path
        self.searchable = search  # whether the words of messages are indexed
        self._adapters = adapters
        self.facts = FactIndex(self._tables, segments, adapters)
        self._post = post
        self.on_fault: Callable[[Exception], None] = lambda _error: None  # called on the loop
        self._queue: SimpleQueue[SyncedBatch | None] = SimpleQueue()
        self._tasks: deque[tuple[int, Callable[[], None]]] = deque()  # each waits for a sequence to be applied
        self._stopping = threading.Event()
        self._failure: str | None = None  # of the last write
        self._level = 0  # the last sequence that was applied; of the thread
        self._number_end = 0  # the first number that nobody has, never less than before
        self.rebuilds = 0  # of the tables since the start
        self._rebuild_requests: SimpleQueue[threading.Event] = SimpleQueue()
        self._tables.on_damage = lambda: self._queue.put(_EMPTY_BATCH)
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    @property
    def trouble(self) -> str | None:
        """Why the tables cannot be used, in a sentence for operators; None if they can."""
        if self._tables.damage is not None:
            return f"the index is damaged ({self._tables.damage}) and is being rebuilt from the log"
        return None if self._failure is None else f"the index cannot be written: {self._failure}"

    @property
    def level(self) -> int:
        """The last sequence that the thread has applied."""
        return self._level

    @property
    def applied_seq(self) -> int:
        """The last sequence in the tables; raises `Unavailable` if they cannot be read."""
        row = self.one(META_VALUE, ("applied",))
        return 0 if row is None else int(row[0])

    @property
    def next_number(self) -> int:
        """The first peer number beyond all that the log assigns."""
        return self._tables.meta("next_number")

    @property
    def last_time(self) -> int:
        """When the newest entry was accepted, ms."""
        return self._tables.meta("time")

    def catch_up(self) -> int:
        """Make the tables agree with the log, rebuilding them if they are damaged; return how many entries it applied.

        Raises `sqlite3.Error` where a new file would fail as well: the disk is full, or the file is in use.
        """
        try:
            self._check()
            return self._catch_up()
        except (sqlite3.Error, Unavailable, ValueError) as error:
            if isinstance(error, sqlite3.Error) and is_environmental(error):
                raise
            self.on_fault(error)
        self._tables.replace()()
        self._tables.damage = None
        return self._catch_up()

    def rebuild(self) -> None:
        """Rebuild the tables, and wait until that is done or has failed once."""
        done = threading.Event()
        self._rebuild_requests.put(done)
        self._queue.put(_EMPTY_BATCH)
        done.wait()

    def start(self) -> None:
        """Start the thread that applies what `add_synced` is given."""
        self._thread.start()

    def add_synced(self, batch: SyncedBatch) -> None:
        """Apply *batch*, which is on disk, soon."""
        self._synced = batch.entries[-1].seq
        self._queue.put(batch)

    def submit(self, task: Callable[[], None]) -> None:
        """Run *task* in the index's thread, once everything added before is applied."""
        self._tasks.append((self._synced, task))
        self._queue.put(_EMPTY_BATCH)

    def prune(self, before: int) -> None:
        """Delete the messages below sequence *before*, and their ids; facts stay. Call it in a task."""
        self._tables.prune(
            before, (statement for adapter in self._adapters for statement in adapter.pruning_statements())
        )

    def schedule_repair(self) -> None:
        """Call `FactIndex.repair` in the index's thread until it succeeds."""
        self.submit(self._repair_until_done)

    def close(self) -> None:
        """Apply what was added, and stop."""
        self._stopping.set()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._tables.close()

    def _catch_up(self) -> int:
        if self._tables.meta("applied") >= self._segments.next_seq:
            self._tables.replace()()  # they are ahead of the log: it was replaced, or lost synced records
        is_build = not self._tables.meta("applied") and self._segments.next_seq > 1
        if is_build:
            self._begin_build()()
        else:
            self.facts.adopt_front()
            self.facts.repair()
            self._number_end = self._tables.meta("next_number")
        done = 0
        entries = self._entries_after(self._tables.meta("applied"))
        while batch := list(islice(entries, BATCH_ENTRIES)):
            self._apply(SyncedBatch(*zip(*batch, strict=True)))
            done += len(batch)
        if is_build:
            self._tables.finish_build()
        self.prune(self._segments.first_kept)  # a crash may have come before it, in the midst of a retirement
        self._level = self._segments.next_seq - 1
        return done

    def _begin_build(self) -> Callable[[], None]:
        """Begin to build the tables; return a call that closes the old ones, which must be made on the loop."""
        let_go = self._tables.begin_build(self._stopping.is_set)
        self.facts.adopt_front()
        self._level = self._number_end = 0
        return let_go

    def _check(self) -> None:
        """Raise `sqlite3.Error`, `Unavailable` or `ValueError` if the tables are damaged or inconsistent."""
        self._tables.check()
        self.facts.check_front()
        ((newest, number),) = self.rows("SELECT (SELECT max(seq) FROM records), (SELECT max(number) FROM peers)")
        if (newest or 0) != self._tables.meta("applied") or (number is not None and number >= self.next_number):
            raise sqlite3.DatabaseError("the index does not agree with itself")
        for _ in self.channels():
            pass

    def _entries_after(self, seq: int) -> Iterator[tuple[Entry, int]]:
        checks = [adapter.flaw for adapter in self._adapters]
        for line in self._segments.scan(seq):
            wrong = None
            try:
                entry = decode_untrusted_body(line.body)
                for check in checks:
                    if wrong := check(entry):
                        break
            except BadRecord as error:
                wrong = str(error)
            if wrong is None:
                yield entry, line.offset
            else:
                self._segments.report(Fault(self._segments.path(line.first).name, line.offset, wrong))

    # The writer's thread

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            entries, offsets = list(batch.entries), list(batch.offsets)
            sleep(GATHER_SECONDS)
            while not self._queue.empty() and len(entries) < BATCH_ENTRIES:
                if (more := self._queue.get()) is None:
                    self._queue.put(None)
                    break
                entries += more.entries
                offsets += more.offsets
            if entries and entries[-1].seq > self._level and not self._apply_until_done(SyncedBatch(entries, offsets)):
                return
            if (
                self._tables.damage is not None or not self._rebuild_requests.empty()
            ) and not self._rebuild_until_done():
                return
            while self._tasks and self._tasks[0][0] <= self._level:
                self._run_task(self._tasks.popleft()[1])

    def _run_task(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # a bug in the task must not end this thread
            self._post(partial(self.on_fault, error))

    def _repair_until_done(self) -> None:
        """Repair the facts, retrying until it succeeds; if the index stops first, the next start does it."""
        while not self._stopping.is_set():
            try:
                self.facts.repair()
            except (sqlite3.Error, OSError) as error:
                self._report_failure(error)
                if isinstance(error, sqlite3.Error) and is_corruption(error):
                    self._tables.damage = str(error)  # rebuilt tables need no repair
                    self._queue.put(_EMPTY_BATCH)
                    return
                self._stopping.wait(RETRY_SECONDS)
            else:
                self._failure = None
                return

    def _apply_until_done(self, batch: SyncedBatch) -> bool:
        """Apply *batch*, retrying until it succeeds; return False if the index stops first."""
        while True:
            try:
                self._apply(batch)
            except Exception as error:  # any but `sqlite3.Error` is a bug, and must not end this thread
                self._report_failure(error)
                if isinstance(error, sqlite3.Error) and is_corruption(error):
                    self._tables.damage = str(error)
                    return True  # the rebuilt tables will have this batch
                if self._stopping.wait(RETRY_SECONDS):
                    return False  # the next start catches up
            else:
                self._mark_applied(batch)
                return True

    def _report_failure(self, error: Exception) -> None:
        self._failure = str(error)
        self._post(partial(self.on_fault, error))

    def _mark_applied(self, batch: SyncedBatch) -> None:
        self._failure = None
        self._level = batch.entries[-1].seq
        self._post(partial(self._remove_applied, self._level))

    def _rebuild_until_done(self) -> bool:
        """Rebuild the tables, retrying until it succeeds; return False if the index stops first."""
        done = False
        while not done and not self._stopping.is_set():
            self._tables.damage = self._tables.damage or "a rebuild was requested"
            try:
                self._post(self._segments.reserve.lend(self._begin_build))
                self.rebuilds += 1
                if done := self._apply_log():
                    self._segments.reserve.lend(self._tables.finish_build)
                    self._tables.damage = None
            except (sqlite3.Error, OSError) as error:
                done = False
                if not self._stopping.is_set():
                    self._report_failure(error)
                    self._stopping.wait(RETRY_SECONDS)
            while not self._rebuild_requests.empty():
                self._rebuild_requests.get().set()
        return done

    def _apply_log(self) -> bool:
        """Apply the log up to the last entry that was added; return False if the index stops first."""
        while self._discard_queue() and self._level < self._synced:
            goal = self._synced
            found = (line for line in self._entries_after(self._level) if line[0].seq <= goal)
            while batch := list(islice(found, BATCH_ENTRIES)):
                if self._stopping.is_set():
                    return False
                synced = SyncedBatch(*zip(*batch, strict=True))
                self._apply(synced)
                self._mark_applied(synced)
            self._level = goal  # records at the end may be damaged
        return not self._stopping.is_set()

    def _discard_queue(self) -> bool:
        """Discard the queued batches, which are in the log; return False if the index is to stop."""
        while not self._queue.empty():
            if self._queue.get() is None:
                self._queue.put(None)
                return False
        return True

    def _apply(self, batch: SyncedBatch) -> None:
        """Put a batch into the tables."""
        entries, last = batch.entries, batch.entries[-1]
        rows: dict[str, list[tuple[Any, ...]]] = {"meta": [("applied", last.seq), ("time", last.time)]}
        rows |= record_rows(batch) | id_rows(self._chosen_ids(entries))
        facts = (row for entry in entries if isinstance(entry, Fact) for row in fact_rows(entry))
        end = max([self._number_end, *(number_end(entry) for entry in entries if isinstance(entry, Fact))])
        rows["meta"].append(("next_number", end))
        for row in chain(facts, *(each.rows(entries) for each in self._adapters)):
            rows.setdefault(row.table, []).append(row.values)
        if self.searchable:
            rows[word_index.COLUMNS] = list(word_index.text_rows(entries))
        self._tables.put(rows)
        self._number_end = end
