"""The index: SQLite views of the log, made for being asked. It can be thrown away and is made again.

Laws of this file. The index holds where records stand, never what they say: content is read from the log, and its
checksum is checked each time. It applies synced entries only, in batches, in one thread. What was appended but is
not applied yet is kept in memory and joined to every answer, so that a query sees all that was accepted before it.
Reads run on the loop, each by an index and with a limit.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from time import sleep
from typing import Any, NamedTuple, Protocol

from .bus import Receipt
from .jsontext import dumps, loads
from .log import Synced
from .message import Message, MessageIds, Peer
from .record import BadRecord, Entry, Fact, decode
from .segments import Segments

PAGE = 256  # rows that one statement may answer
GATHER = 0.05  # seconds between two batches while entries keep coming
BATCH = 2_000  # entries in one transaction

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE records (seq INTEGER PRIMARY KEY, offset INTEGER NOT NULL, channel TEXT, sender INTEGER);
CREATE INDEX records_channel ON records (channel, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_sender ON records (channel, sender, seq) WHERE channel IS NOT NULL;
CREATE TABLE ids (id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE channels (name TEXT PRIMARY KEY, addresses TEXT NOT NULL, open INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE peers (number INTEGER PRIMARY KEY, protocol TEXT NOT NULL, identity TEXT NOT NULL, name TEXT);
CREATE UNIQUE INDEX peers_identity ON peers (protocol, identity);
"""


class Row(NamedTuple):
    """One row for a table of the index; it takes the place of the row with the same key."""

    table: str
    values: tuple[Any, ...]


class Indexed(Protocol):
    """What the index asks of an adapter."""

    @property
    def tables(self) -> str:
        """SQL that makes the adapter's tables."""

    def rows(self, entry: Entry) -> Iterable[Row]:
        """What *entry* adds to the adapter's tables."""


class Index:
    """Finds again what was logged.

    *post* runs a callable on the loop. Before `start`, `catch_up` brings the tables level with the log.
    """

    def __init__(
        self,
        path: Path,
        segments: Segments,
        ids: MessageIds,
        adapters: Sequence[Indexed] = (),
        post: Callable[[Callable[[], None]], None] = lambda call: call(),
    ) -> None:
        self._segments = segments
        self._ids = ids
        self._adapters = adapters
        self._post = post
        self._write = _open(path, SCHEMA + "".join(adapter.tables for adapter in adapters))
        self._read = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        self._pending: dict[int, Entry] = {}
        self._pending_ids: dict[str, int] = {}
        self._pending_channels: dict[str, dict[int, Message]] = {}
        self._synced = segments.next_seq - 1
        self._queue: SimpleQueue[Sequence[Synced] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    # Made level with the log

    @property
    def applied_seq(self) -> int:
        """The last sequence that the tables know."""
        return int(self._meta("applied", 0))

    def catch_up(self) -> int:
        """Apply what the log has and the tables have not, drop what the log has lost; return how many entries."""
        last = self._segments.next_seq - 1
        if self.applied_seq > last:
            self._start_over()
        done = 0
        entries = self._entries_after(self.applied_seq)
        while batch := list(islice(entries, BATCH)):
            self._apply(batch)
            done += len(batch)
        return done

    def start(self) -> None:
        """Begin to apply what `take` is given."""
        self._thread.start()

    def note(self, entry: Entry) -> None:
        """An entry was appended to the log: it can be found from now on."""
        self._pending[entry.seq] = entry
        for id in entry.ids:
            self._pending_ids[id] = entry.seq
        if isinstance(entry, Message):
            self._pending_channels.setdefault(entry.channel, {})[entry.seq] = entry
            if self._ids.seq(entry.id) != entry.seq:
                self._pending_ids[entry.id] = entry.seq

    def take(self, batch: Sequence[Synced]) -> None:
        """A batch is on disk; it is applied soon."""
        self._synced = batch[-1].entry.seq
        self._queue.put(batch)

    def close(self) -> None:
        """Apply what was taken and stop."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._read.close()
        self._write.close()

    # Asked

    def find(self, id: str) -> Receipt | None:
        """The message with this canonical or chosen id, on disk or not yet."""
        own = self._ids.seq(id)
        entry = self.entry(own) if own is not None else None
        if not isinstance(entry, Message) or entry.id != id:
            seq = self._pending_ids.get(id) or self._known_seq(id)
            entry = self.entry(seq) if seq is not None else None
        return Receipt(entry.seq, entry.id, entry.time, entry.undelivered) if isinstance(entry, Message) else None

    def message(self, id: str) -> Message | None:
        """The message with this canonical or chosen id, once it is on disk."""
        receipt = self.find(id)
        if receipt is None or receipt.seq > self._synced:
            return None
        entry = self.entry(receipt.seq)
        return entry if isinstance(entry, Message) else None

    def entry(self, seq: int) -> Entry | None:
        """The record with this sequence number."""
        if (pending := self._pending.get(seq)) is not None:
            return pending
        row = self._read.execute("SELECT offset FROM records WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else self._load(seq, row[0])

    def offset(self, seq: int) -> int:
        """Where the record *seq* stands in its segment; 0 where the tables do not know."""
        row = self._read.execute("SELECT offset FROM records WHERE seq = ?", (seq,)).fetchone()
        return 0 if row is None else int(row[0])

    def history(
        self,
        channel: str,
        *,
        after: int = 0,
        before: int | None = None,
        sender: int | None = None,
        newest_first: bool = False,
        limit: int = PAGE,
    ) -> list[Message]:
        """At most *limit* (`PAGE` at most) messages of *channel* between two sequences, both excluded."""
        limit = min(limit, PAGE)
        end = before if before is not None else 1 << 62
        where = "channel = ? AND seq > ? AND seq < ?" + ("" if sender is None else " AND sender = ?")
        values = (channel, after, end) if sender is None else (channel, after, end, sender)
        order = "DESC" if newest_first else "ASC"
        rows = self._read.execute(
            f"SELECT seq, offset FROM records WHERE {where} ORDER BY seq {order} LIMIT ?", (*values, limit)
        ).fetchall()
        found: dict[int, int] = dict(rows)
        pending = {
            seq: message
            for seq, message in self._pending_channels.get(channel, {}).items()
            if after < seq < end and seq <= self._synced and (sender is None or message.sender.number == sender)
        }
        chosen = sorted(found.keys() | pending.keys(), reverse=newest_first)[:limit]
        loaded = (pending.get(seq) or self._load(seq, found[seq]) for seq in chosen)
        return [entry for entry in loaded if isinstance(entry, Message)]

    def last_seq(self, channel: str) -> int:
        """The sequence of the newest message of *channel* that is on disk, 0 without one."""
        newest = self.history(channel, newest_first=True, limit=1)
        return newest[0].seq if newest else 0

    def peer(self, protocol: str, identity: str) -> Peer | None:
        """The durable peer of an identity."""
        row = self.one("SELECT * FROM peers WHERE protocol = ? AND identity = ?", (protocol, identity))
        return None if row is None else Peer(*row)

    def peer_numbered(self, number: int) -> Peer | None:
        """The durable peer with a number."""
        row = self.one("SELECT * FROM peers WHERE number = ?", (number,))
        return None if row is None else Peer(*row)

    def peers(self) -> list[Peer]:
        """The durable peers, lowest number first, at most `PAGE` of them."""
        return [Peer(*row) for row in self.rows("SELECT * FROM peers ORDER BY number LIMIT ?", (PAGE,))]

    def channels(self) -> Iterator[tuple[str, dict[str, str], bool]]:
        """Every channel with its addresses, and whether it is open."""
        for name, addresses, is_open in self._write.execute("SELECT name, addresses, open FROM channels"):
            yield name, loads(addresses), bool(is_open)

    @property
    def next_number(self) -> int:
        """The first peer number that no block in the log holds."""
        return int(self._meta("next_number", 0))

    @property
    def last_time(self) -> int:
        """When the newest entry was accepted, ms."""
        return int(self._meta("time", 0))

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """What an adapter asks of its own tables; the statement uses an index and a limit."""
        return self._read.execute(sql, values).fetchall()

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any | None:
        """The first row of an answer, if there is one."""
        return self._read.execute(sql, values).fetchone()

    # The writer's thread

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            entries = list(batch)
            sleep(GATHER)
            while not self._queue.empty() and len(entries) < BATCH:
                if (more := self._queue.get()) is None:
                    self._queue.put(None)
                    break
                entries.extend(more)
            self._apply(entries)
            self._post(partial(self._applied, entries))

    def _apply(self, batch: Sequence[Synced]) -> None:
        """Put a batch into the tables, in one transaction and one statement for each table."""
        last = batch[-1].entry
        rows = [row for synced in batch for row in self._rows(synced)]
        rows += [Row("meta", ("applied", last.seq)), Row("meta", ("time", last.time))]
        rows.sort(key=lambda row: row.table)
        with self._write:
            self._write.execute("BEGIN")
            for table, group in groupby(rows, key=lambda row: row.table):
                values = [row.values for row in group]
                columns = ",".join(f"json_extract(value,'$[{i}]')" for i in range(len(values[0])))
                self._write.execute(
                    f"INSERT OR REPLACE INTO {table} SELECT {columns} FROM json_each(?)", (dumps(values).decode(),)
                )

    def _rows(self, synced: Synced) -> Iterator[Row]:
        entry = synced.entry
        if isinstance(entry, Message):
            yield Row("records", (entry.seq, synced.offset, entry.channel, entry.sender.number))
            if self._ids.seq(entry.id) != entry.seq:
                yield Row("ids", (entry.id, entry.seq))
            if entry.key is not None:
                yield Row("ids", (entry.key, entry.seq))
        else:
            yield Row("records", (entry.seq, synced.offset, None, None))
            yield from _fact_rows(entry)
        for adapter in self._adapters:
            yield from adapter.rows(entry)

    # On the loop

    def _applied(self, batch: Sequence[Synced]) -> None:
        for synced in batch:
            entry = synced.entry
            self._pending.pop(entry.seq, None)
            for id in entry.ids:
                if self._pending_ids.get(id) == entry.seq:
                    del self._pending_ids[id]
            if isinstance(entry, Message):
                self._pending_ids.pop(entry.id, None)
                channel = self._pending_channels.get(entry.channel)
                if channel is not None:
                    channel.pop(entry.seq, None)
                    if not channel:
                        del self._pending_channels[entry.channel]

    def _known_seq(self, id: str) -> int | None:
        row = self.one("SELECT seq FROM ids WHERE id = ?", (id,))
        return None if row is None else int(row[0])

    def _load(self, seq: int, offset: int) -> Entry | None:
        try:
            return decode(self._segments.read(seq, offset))
        except (BadRecord, OSError):
            return None  # never served; `Segments` reports it when the log is verified

    def _entries_after(self, seq: int) -> Iterator[Synced]:
        for line in self._segments.scan(seq):
            try:
                yield Synced(decode(line.data), line.first, line.offset)
            except BadRecord:
                continue

    def _meta(self, key: str, default: Any) -> Any:
        row = self._write.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return default if row is None else row[0]

    def _start_over(self) -> None:
        """The log ends before the tables do (it was replaced, or the disk lied): begin again."""
        with self._write:
            for (table,) in self._write.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                if table != "meta":
                    self._write.execute(f"DELETE FROM {table}")
            self._write.execute("DELETE FROM meta WHERE key != 'schema'")


def _fact_rows(fact: Fact) -> Iterator[Row]:
    match fact.kind, fact.fields:
        case "peer", {"first": first, "count": count}:
            yield Row("meta", ("next_number", first + count))
        case "peer", {"peer": number, "protocol": protocol, "sender": identity, **rest}:
            yield Row("peers", (number, protocol, identity, rest.get("name")))
        case "channel", {"channel": name, "addresses": addresses, "open": is_open}:
            yield Row("channels", (name, dumps(addresses).decode(), int(is_open)))


def _open(path: Path, schema: str) -> sqlite3.Connection:
    """The database at *path*, made anew where it is missing, damaged, or of another make."""
    for attempt in range(2):
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                connection.executescript(schema)
                connection.execute("INSERT INTO meta VALUES ('schema', ?)", (schema,))
            if connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (schema,):
                return connection
        except sqlite3.DatabaseError:
            if attempt:
                raise
        connection.close()
        for stale in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            stale.unlink(missing_ok=True)
    raise sqlite3.DatabaseError(f"{path} cannot be made anew; move it away and start again")
