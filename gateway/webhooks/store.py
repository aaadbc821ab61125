"""Keeps webhooks, their positions and their dead letters in an SQLite file, durably.

Laws of this file. Each method is one transaction that is on disk when it returns, so call it in a thread, never on the
loop. The file is created with the first webhook. A message becomes a dead letter in the same transaction that moves the
position beyond it, so a crash neither loses nor doubles it. No content of a message and no secret is kept here.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from gateway.storage import permissions

from .model import DeadLetter, Webhook

FILE: Final = "webhooks.sqlite"
MAX_PAGE = 256  # dead letters that one call returns

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS webhooks (
    id TEXT PRIMARY KEY, url TEXT NOT NULL, pattern TEXT NOT NULL, created INTEGER NOT NULL, created_by TEXT,
    position INTEGER NOT NULL, generation INTEGER NOT NULL, rotated INTEGER NOT NULL, enabled INTEGER NOT NULL,
    reason TEXT, failing_since INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owners (webhook TEXT PRIMARY KEY, member TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dead_letters (
    webhook TEXT NOT NULL, seq INTEGER NOT NULL, message TEXT NOT NULL, channel TEXT NOT NULL, time INTEGER NOT NULL,
    attempts INTEGER NOT NULL, error TEXT NOT NULL, PRIMARY KEY (webhook, seq)
) WITHOUT ROWID;
"""
COLUMNS: Final = (
    *("id", "url", "pattern", "created", "created_by", "position"),
    *("generation", "rotated", "enabled", "reason", "failing_since"),
)


class WebhookStore:
    """The file below the data directory *data*. Every method may raise `sqlite3.Error` or `OSError`.

    In a cluster *member* is the name of the gateway: a data directory that was made from a backup has the webhooks of
    another member, which delivers them itself.
    """

    def __init__(self, data: Path, member: str = "") -> None:
        self.foreign = 0  # webhooks of other members
        self._path = data / FILE
        self._member = member
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def load(self) -> list[Webhook]:
        """Return all webhooks; of a member of a cluster those that are its own, or nobody's so far."""
        if not self._path.exists():
            return []
        theirs = set[str]()
        if self._member:
            self._run("INSERT OR IGNORE INTO owners SELECT id, ? FROM webhooks", [self._member])
            theirs = {id for (id,) in self._run("SELECT webhook FROM owners WHERE member != ?", [self._member])}
        rows = self._run(f"SELECT {', '.join(COLUMNS)} FROM webhooks ORDER BY created, id")
        counts = dict(self._run("SELECT webhook, count(*) FROM dead_letters GROUP BY webhook"))
        found = []
        for row in rows:
            fields = dict(zip(COLUMNS, row, strict=True))
            if fields["id"] in theirs:
                continue
            fields["enabled"] = bool(fields["enabled"])
            found.append(Webhook(**fields, dead_letters=counts.get(fields["id"], 0)))
        self.foreign = len(rows) - len(found)
        return found

    def put(self, webhook: Webhook) -> None:
        """Add *webhook*, or replace it."""
        marks = ", ".join("?" * len(COLUMNS))
        self._transaction(
            (f"INSERT OR REPLACE INTO webhooks VALUES ({marks})", [tuple(getattr(webhook, name) for name in COLUMNS)]),
            ("INSERT OR REPLACE INTO owners VALUES (?, ?)", [(webhook.id, self._member)] if self._member else []),
        )

    def delete(self, id: str) -> None:
        """Remove a webhook and its dead letters."""
        self._transaction(
            ("DELETE FROM webhooks WHERE id = ?", [(id,)]),
            ("DELETE FROM dead_letters WHERE webhook = ?", [(id,)]),
            ("DELETE FROM owners WHERE webhook = ?", [(id,)]),
        )

    def save_positions(self, positions: Iterable[tuple[int, int | None, str]]) -> None:
        """Save the position and `failing_since` of webhooks, with their ids."""
        self._transaction(("UPDATE webhooks SET position = ?, failing_since = ? WHERE id = ?", positions))

    def add_dead_letter(self, webhook: str, letter: DeadLetter) -> None:
        """Add a dead letter, and move the position of its webhook to it unless it is beyond."""
        move = "UPDATE webhooks SET position = max(position, ?) WHERE id = ?"
        self._transaction(
            ("INSERT OR REPLACE INTO dead_letters VALUES (?, ?, ?, ?, ?, ?, ?)", [(webhook, *letter)]),
            (move, [(letter.seq, webhook)]),
        )

    def dead_letters(self, webhook: str, after: int, limit: int) -> list[DeadLetter]:
        """Return at most *limit* (`MAX_PAGE` + 1 at most) dead letters above the sequence *after*, lowest first."""
        sql = (
            "SELECT seq, message, channel, time, attempts, error FROM dead_letters"
            " WHERE webhook = ? AND seq > ? ORDER BY seq LIMIT ?"
        )
        return [DeadLetter(*row) for row in self._run(sql, (webhook, after, min(limit, MAX_PAGE + 1)))]

    def delete_dead_letter(self, webhook: str, seq: int) -> bool:
        """Remove one dead letter; return whether it was there."""
        return bool(self._run("DELETE FROM dead_letters WHERE webhook = ? AND seq = ? RETURNING seq", (webhook, seq)))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._lock:
            return self._open().execute(sql, tuple(values)).fetchall()

    def _transaction(self, *statements: tuple[str, Iterable[tuple[Any, ...]]]) -> None:
        with self._lock:
            connection = self._open()
            with connection:
                connection.execute("BEGIN")
                for sql, rows in statements:
                    connection.executemany(sql, rows)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.touch(permissions.FILE_MODE)
            connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(SCHEMA)
            self._connection = connection
        return self._connection
