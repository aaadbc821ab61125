"""Rows of nodes that are logged, and that the index has not written yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from gateway.core.message import Message
from gateway.storage.index_schema import KnownId, Row

from .tables import rows

TABLES: Final = ("sprout_nodes", "sprout_expiring", "sprout_forms", "sprout_minted")


class UnindexedRows:
    """The rows that the index will write, by table and first column, until it has written them.

    Rows of `sprout_replies` are made from messages that the index itself keeps until then.
    """

    def __init__(self) -> None:
        self._added: deque[tuple[int, Sequence[Row | KnownId]]] = deque()  # by the sequence of their record
        self._tables: dict[str, dict[Any, tuple[Any, ...]]] = {table: {} for table in TABLES}
        self._ids: dict[str, int] = {}
        self._replies: dict[int, tuple[Any, ...] | None] = {}  # by sequence; None for a message without a row

    def add(self, seq: int, rows: Sequence[Row | KnownId]) -> None:
        """Add the rows that the index will write for the record at *seq*."""
        if rows:
            self._added.append((seq, rows))
        for row in rows:
            if isinstance(row, KnownId):
                self._ids[row.id] = row.seq
            else:
                self._tables[row.table][row.values[0]] = row.values

    def seq(self, id: str) -> int | None:
        """The sequence of the node *id*; None if no row here has it."""
        return self._ids.get(id)

    def row(self, table: str, key: Any) -> tuple[Any, ...] | None:
        """The row of *table* whose first column is *key*; None if there is none here."""
        return self._tables[table].get(key)

    def nodes(self) -> Iterable[tuple[Any, ...]]:
        """All rows of `sprout_nodes`."""
        return self._tables["sprout_nodes"].values()

    def replies(self, messages: Iterable[Message]) -> list[tuple[Any, ...]]:
        """The rows of `sprout_replies` for *messages*, each made once."""
        found: list[tuple[Any, ...]] = []
        for message in messages:
            if message.seq not in self._replies:
                made = [row.values for row in rows((message,)) if row.table == "sprout_replies"]
                self._replies[message.seq] = made[0] if made else None
            if (row := self._replies[message.seq]) is not None:
                found.append(row)
        return found

    def forget(self, id: str, seq: int, what: str) -> None:
        """Forget the entity *id* at *seq*, minted for *what*."""
        self._tables["sprout_nodes"].pop(seq, None)
        self._tables["sprout_minted"].pop(what, None)
        self._ids.pop(id, None)

    def prune(self, applied: int) -> None:
        """Forget the rows of all records up to the sequence *applied*: the index has written them."""
        self._replies = {seq: row for seq, row in self._replies.items() if seq > applied}
        while self._added and self._added[0][0] <= applied:
            for row in self._added.popleft()[1]:
                if isinstance(row, KnownId):
                    if self._ids.get(row.id) == row.seq:
                        del self._ids[row.id]
                elif self._tables[row.table].get(row.values[0]) == row.values:
                    del self._tables[row.table][row.values[0]]
