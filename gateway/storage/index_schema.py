"""The tables of the index, and what adapters may know of them.

Laws of this file. The tables are the storage's own: nobody else names them in SQL. An adapter joins its tables with the
view `messages`, says in `tables_by_record` which of its rows are deleted with their record, adds ids as `KnownId`, and
asks `index_queries.py` for everything else. The first id of a message is in `ids`, the others are in `aliases`;
an id that is in both belongs to the newer message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

SCHEMA = """
-- 2: nothing is in it but what makes sense
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE records (seq INTEGER PRIMARY KEY, offset INTEGER, channel TEXT, sender INTEGER, at INTEGER);
CREATE INDEX records_channel ON records (channel, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_sender ON records (channel, sender, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_at ON records (channel, at, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_time ON records (at, seq) WHERE channel IS NOT NULL;
CREATE TABLE ids (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE aliases (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE VIEW known AS SELECT id, seq FROM ids UNION ALL SELECT id, seq FROM aliases;
CREATE TABLE channels (name TEXT PRIMARY KEY, addresses TEXT NOT NULL, open INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE peers (number INTEGER PRIMARY KEY, protocol TEXT NOT NULL, identity TEXT NOT NULL, name TEXT);
CREATE UNIQUE INDEX peers_identity ON peers (protocol, identity);
"""

# What adapters may join their tables with: every message that is kept, with its sequence, where its record stands in
# its segment (for `Lookup.read`), its channel, the number of its sender, and its author's time (ms). There are indexes
# on (seq), (channel, seq), (channel, sender, seq), (channel, at, seq) and (at, seq). SQLite flattens the view: a query
# of it has the plan of the same query of `records`.
MESSAGES = """
CREATE VIEW messages AS SELECT seq, offset, channel, sender, at FROM records WHERE channel IS NOT NULL;
"""

# The columns that each kind of record fills: binding None is slow in Python's sqlite3.
FACT_COLUMNS, MESSAGE_COLUMNS = "records (seq, offset)", "records"

Statement = tuple[str, tuple[Any, ...]]  # SQL, and its values


class Row(NamedTuple):
    """One row for a table of the index; it replaces the row with the same key."""

    table: str
    values: tuple[Any, ...]


class KnownId(NamedTuple):
    """Another *id* by which the record *seq* is found; a record that had that id before is not found by it any more."""

    id: str
    seq: int

    @property
    def table(self) -> str:
        """The table that it is added to."""
        return "ids"

    @property
    def values(self) -> tuple[str, int]:
        """Its row there."""
        return self.id, self.seq

    @property
    def removal(self) -> Statement:
        """The statement that deletes it, unless the id means another record by now."""
        return "DELETE FROM ids WHERE id = ? AND seq = ?", (self.id, self.seq)


def deletion_trigger(tables: Sequence[str]) -> str:
    """SQL that deletes from each of *tables* the rows with the `seq` of a record, together with that record."""
    deletions = "".join(f"    DELETE FROM {table} WHERE seq = OLD.seq;\n" for table in tables)
    return f"CREATE TRIGGER records_deleted AFTER DELETE ON records BEGIN\n{deletions}END;\n" if tables else ""
