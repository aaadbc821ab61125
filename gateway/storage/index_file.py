"""The SQLite file of the index: opened, replaced if it is damaged, written in batches, read with a limit.

Laws of this file. One connection writes, in the index's thread; another only reads, on the loop. A damaged file is
abandoned: nothing is read until another one has replaced it and agrees with the log. A batch is one transaction with
few statements for each table. SQLite journals a statement by itself if it could fail halfway, for instance on a NOT
NULL: `records` has none, and the journal of the others is in memory. Tables that are made from the whole log are
written to a file that replaces the other one when it is complete.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from gateway.core.errors import Unavailable
from gateway.system.directories import sync_directory

from . import permissions
from .index_schema import MESSAGES, SCHEMA

MAX_ROWS_PER_STATEMENT = 128  # older SQLite takes 999 values
META_VALUE = "SELECT value FROM meta WHERE key = ?"
BUILD_CACHE = -(16 << 10)  # KiB of pages that are kept while a file is built, and sorted at once
STEPS = 100_000  # of SQLite's virtual machine between two looks whether to stop

CHECK_SECONDS = 0.25  # for checking every page at a start; damage that is found later is repaired later

# Errors that do not mean damage: the disk is full, or the file is locked, or memory is short.
_ENVIRONMENT_ERRORS = frozenset(
    (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_INTERRUPT,
    )
)


class Tables:
    """The tables of the index and of the adapters; *extra* is the SQL that creates the latter."""

    def __init__(self, path: Path, extra: str) -> None:
        self._path = path
        self._new = path.with_name(f"{path.name}.new")  # while it is built
        _remove(self._new)
        self._schema = SCHEMA + MESSAGES + extra
        self.damage: str | None = None  # why nothing is read
        self.on_damage: Callable[[], None] = lambda: None  # called when a read finds damage
        self._write: sqlite3.Connection
        self._read: sqlite3.Connection
        self._connect()

    def put(self, rows: Mapping[str, Sequence[tuple[Any, ...]]], on_conflict: str = "REPLACE") -> None:
        """Insert *rows*, by table, in one transaction; they replace rows with the same keys.

        With *on_conflict* IGNORE existing rows stay instead.
        """
        with self._write:
            self._write.execute("BEGIN")
            for table, values in rows.items():
                self._insert(table, values, on_conflict)

    def execute(self, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
        """Execute *statements* in one transaction."""
        with self._write:
            self._write.execute("BEGIN")
            for sql, values in statements:
                _execute(self._write, sql, values)

    def prune(self, before: int, extra: Iterable[tuple[str, Sequence[Any]]] = ()) -> None:
        """Delete the messages below sequence *before*, and their ids; if there were any, execute *extra* as well."""
        with self._write:
            self._write.execute("BEGIN")
            if self._write.execute("DELETE FROM records WHERE seq < ? AND channel IS NOT NULL", (before,)).rowcount:
                for table in ("ids", "aliases"):
                    gone = f"DELETE FROM {table} WHERE seq < ? AND seq NOT IN (SELECT seq FROM records)"
                    self._write.execute(gone, (before,))
                for sql, values in extra:
                    self._write.execute(sql, values)

    def check(self) -> None:
        """Raise `sqlite3.Error` if a check of the pages, cut off after `CHECK_SECONDS`, finds damage."""
        timer = threading.Timer(CHECK_SECONDS, self._write.interrupt)  # SQLite 3.40 calls no progress handler here
        timer.start()
        try:
            (found,) = self._write.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            if _code(error) == sqlite3.SQLITE_INTERRUPT:
                return
            raise
        finally:
            timer.cancel()
            timer.join()
        if found != "ok":
            raise sqlite3.DatabaseError(found)

    def replace(self) -> Callable[[], None]:
        """Replace the file by an empty one; return a call that closes the old one, which must be made on the loop."""
        let_go = self._read.close
        self._write.close()
        _remove(self._path)
        self._connect()
        return let_go

    def begin_build(self, is_stopping: Callable[[], bool]) -> Callable[[], None]:
        """Remove the file, and write to a new one until `finish_build`; a crash before that leaves none.

        The new file has no journal, and no index but those that keep keys unique, so a record takes half the time.
        Nothing may be read meanwhile. A statement is interrupted (`sqlite3.OperationalError`) once *is_stopping*.
        Return a call that closes the old file, as `replace` does.
        """
        let_go = self._read.close
        self._write.close()
        _remove(self._path)
        _remove(self._new)
        self._write, self._index_statements = _begin(self._new, self._schema, is_stopping)
        return let_go

    def finish_build(self) -> None:
        """Index what was written, and use the new file from now on."""
        for sql in self._index_statements:
            self._write.execute(sql)
        self._write.close()
        with self._new.open("rb") as file:
            os.fsync(file.fileno())
        self._new.rename(self._path)
        sync_directory(self._path.parent)
        self._connect()

    def close(self) -> None:
        """Close the file."""
        self._read.close()
        self._write.close()

    def meta(self, key: str) -> int:
        """A number that the index keeps about itself, 0 if it has none; raises `sqlite3.Error` if it is unreadable."""
        row = self._write.execute(META_VALUE, (key,)).fetchone()
        if row is not None and type(row[0]) is not int:
            raise sqlite3.DatabaseError(f"{key} is not a number")
        return 0 if row is None else row[0]

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Execute a query; raises `Unavailable` if the file cannot be read."""
        if self.damage is not None:
            raise Unavailable(f"the index is being rebuilt: {self.damage}")
        try:
            return _execute(self._read, sql, values).fetchall()
        except sqlite3.Error as error:
            if is_corruption(error):
                self.damage = str(error)
                self.on_damage()
            raise Unavailable(f"the index cannot be read: {error}") from error
        except OverflowError:
            return []  # no column holds a number beyond 64 bits

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]], on_conflict: str) -> None:
        """Insert many rows with each statement: a statement releases and takes the interpreter's lock, which costs."""
        done, size = 0, MAX_ROWS_PER_STATEMENT
        while left := len(rows) - done:
            while size > left:
                size //= 2  # so that there are few different statements, each compiled once
            values = list(chain.from_iterable(rows[done : done + size]))
            _execute(self._write, _insertion(table, len(rows[0]), size, on_conflict), values)
            done += size

    def _connect(self) -> None:
        self._write = _open(self._path, self._schema)
        self._read = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        self._read.execute(META_VALUE, ("applied",))  # opens the journal now, while there are descriptors


def is_corruption(error: sqlite3.Error) -> bool:
    """Whether *error* says that the file is no database, or a damaged one."""
    short = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ
    return short or _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_environmental(error: sqlite3.Error) -> bool:
    """Whether *error* has another cause than the file, so that a new file would fail as well."""
    return _code(error) in _ENVIRONMENT_ERRORS


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _execute(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
    """Execute *sql*; lone surrogates, which a column cannot hold, are escaped."""
    try:
        return connection.execute(sql, values)
    except UnicodeEncodeError:
        plain = [each.encode(errors="backslashreplace").decode() if type(each) is str else each for each in values]
        return connection.execute(sql, plain)


@cache
def _insertion(table: str, columns: int, rows: int, on_conflict: str) -> str:
    row = f"({','.join('?' * columns)})"
    return f"INSERT OR {on_conflict} INTO {table} VALUES {','.join([row] * rows)}"


def _remove(path: Path) -> None:
    for name in (path.name, path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)


def _create(connection: sqlite3.Connection, schema: str) -> None:
    connection.executescript(schema)
    connection.execute("INSERT INTO meta VALUES ('schema', ?)", (schema,))


def _begin(path: Path, schema: str, is_stopping: Callable[[], bool]) -> tuple[sqlite3.Connection, list[str]]:
    """Create the database at *path* without its indexes; return the statements that create these."""
    path.touch(permissions.FILE_MODE)
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f"PRAGMA cache_size = {BUILD_CACHE}")
    folder = str(path.absolute().parent).replace("'", "''")
    connection.execute(f"PRAGMA temp_store_directory = '{folder}'")  # indexes are sorted there: /tmp may be small
    _create(connection, schema)
    found = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql NOT LIKE 'CREATE UNIQUE%'"
    ).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {name}")
    connection.set_progress_handler(is_stopping, STEPS)
    return connection, [sql for _, sql in found]


def _open(path: Path, schema: str) -> sqlite3.Connection:
    """Open the database at *path*; create it if it is missing, damaged, or has another schema."""
    for _attempt in range(2):
        path.touch(permissions.FILE_MODE)  # its journal is made with the same mode
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA temp_store = MEMORY")
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                _create(connection, schema)
            whole = path.stat().st_size % connection.execute("PRAGMA page_size").fetchone()[0] == 0
            if whole and connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (schema,):
                return connection
        except sqlite3.Error as error:
            if is_environmental(error):
                connection.close()
                raise
        connection.close()
        _remove(path)
    raise sqlite3.DatabaseError(f"{path} cannot be rebuilt; move it away and start again")
