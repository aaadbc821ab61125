"""The facts in the tables of the index: compaction removes and restores them, a start repairs them.

Laws of this file. Everything here runs in the index's thread, or before it starts. While a compaction changes the
tables, they contain a note (`COMPACTING`), by which the next start recognises an interrupted one. A repair never
deletes a fact that the log has, not even while its files cannot be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from gateway.core.jsontext import dumps

from .file_lines import lines_backward
from .index_file import Tables
from .index_rows import IndexedAdapter, fact_rows
from .index_schema import FACT_COLUMNS, Statement
from .record import BadRecord, Fact, decode_untrusted_body
from .segments import Segments, verify_line

BATCH_FACTS: Final = 2_000  # in one transaction
COMPACTING: Final = "compacting"  # in `meta`: up to which sequence facts may be missing
FRONT: Final = "front"  # in `meta`: the last sequence of the front that the tables agree with
SET_META: Final = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
DELETE_RECORD: Final = "DELETE FROM records WHERE seq = ?"
DELETE_OTHER_FACTS: Final = (
    "DELETE FROM records WHERE seq BETWEEN ? AND ? AND channel IS NULL AND seq NOT IN (SELECT value FROM json_each(?))"
)


class FactIndex:
    """Removes facts from the tables, restores and repairs them."""

    def __init__(self, tables: Tables, segments: Segments, adapters: Sequence[IndexedAdapter]) -> None:
        self._tables = tables
        self._segments = segments
        self._adapters = adapters

    def remove(self, facts: Iterable[Fact], last: int) -> None:
        """Delete the rows of *facts*; until `finish`, a note says that facts up to record *last* may be missing."""
        removals = chain.from_iterable(map(self._removal, facts))
        self._tables.execute(chain([(SET_META, (COMPACTING, last))], removals))

    def restore(self, facts: Iterable[Fact]) -> None:
        """Insert the rows of *facts*, newest first, again; a newer fact with the same key keeps its row."""
        every = iter(facts)
        while part := list(islice(every, BATCH_FACTS)):
            places: list[tuple[Any, ...]] = [(fact.seq, 0) for fact in part]  # a read finds the line by its sequence
            rows: dict[str, list[tuple[Any, ...]]] = {FACT_COLUMNS: places}
            own = chain.from_iterable(map(fact_rows, part))
            for row in chain(own, *(adapter.rows(part) for adapter in self._adapters)):
                rows.setdefault(row.table, []).append(row.values)
            self._tables.put(rows, "IGNORE")

    def drop(self, seqs: Iterable[int]) -> None:
        """Delete the positions of the facts *seqs*, which have left the log."""
        self._tables.execute((DELETE_RECORD, (seq,)) for seq in seqs)

    def finish(self) -> None:
        """The compaction that `remove` began is complete."""
        self._tables.put({"meta": [(COMPACTING, 0), (FRONT, self._front)]})

    def repair(self) -> None:
        """Make the facts agree with the log where a compaction began and did not finish; they can be read meanwhile.

        Raises `OSError` where the log cannot be read, `sqlite3.Error` where the tables cannot be written.
        """
        if last := self._tables.meta(COMPACTING):
            layout, directory = self._segments.layout, self._segments.directory
            files = [layout.file(directory, place) for place, first in enumerate(layout.first_seqs) if first <= last]
            facts = (fact for line in lines_backward(files) if (fact := self._valid_fact(line)) is not None)
            while last > 0:
                self.restore(part := list(islice(facts, BATCH_FACTS)))
                first = part[-1].seq if len(part) == BATCH_FACTS else 0
                seqs = dumps([fact.seq for fact in part]).decode()
                self._tables.execute([(DELETE_OTHER_FACTS, (first, last, seqs))])
                last = min(last, first - 1)
            self.finish()

    def adopt_front(self) -> None:
        """Record the current front in tables that are empty: they agree with it."""
        if not self._tables.meta("applied"):
            self._tables.put({"meta": [(FRONT, self._front)]})

    def check_front(self) -> None:
        """Raise `sqlite3.DatabaseError` where the tables may hold facts that compaction has dropped since."""
        fronts = self._tables.meta(FRONT), self._tables.meta(COMPACTING)
        if self._tables.meta("applied") and self._front not in fronts:
            raise sqlite3.DatabaseError("the index is older than the compaction")

    @property
    def _front(self) -> int:
        """The last sequence of the front; 0 without one."""
        front = self._segments.layout.front
        return 0 if front is None else front.last

    def _removal(self, fact: Fact) -> Iterator[Statement]:
        yield DELETE_RECORD, (fact.seq,)
        match fact.kind, fact.fields:
            case "peer", {"peer": number}:
                yield "DELETE FROM peers WHERE number = ?", (number,)
            case "channel", {"channel": name}:
                yield "DELETE FROM channels WHERE name = ?", (name,)
        for adapter in self._adapters:
            yield from adapter.removal_statements(fact)

    def _valid_fact(self, line: bytes) -> Fact | None:
        """The fact on *line*; None if it is not valid, which was reported when it was first read."""
        try:
            _, _, body = verify_line(line)
            entry = decode_untrusted_body(body)
        except BadRecord:
            return None
        is_valid = isinstance(entry, Fact) and all(adapter.flaw(entry) is None for adapter in self._adapters)
        return entry if is_valid and isinstance(entry, Fact) else None
