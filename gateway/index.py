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
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from time import sleep
from typing import Any, NamedTuple, Protocol

from .bus import Receipt
from .errors import Unavailable
from .jsontext import dumps, loads
from .log import Synced
from .message import Message, MessageIds, Peer
from .record import BadRecord, Entry, Fact, decode
from .segments import NEVER, Fault, Segments

PAGE = 256  # rows that one statement may answer
GATHER = 0.05  # seconds between two batches while entries keep coming
BATCH = 2_000  # entries in one transaction
RETRY = 1.0  # seconds until a failed batch is tried again; what is in it is answered from memory meanwhile

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY, offset INTEGER NOT NULL, channel TEXT, sender INTEGER, at INTEGER, parent TEXT
);
CREATE INDEX records_channel ON records (channel, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_sender ON records (channel, sender, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_at ON records (channel, at, seq) WHERE channel IS NOT NULL;
CREATE INDEX records_parent ON records (parent) WHERE parent IS NOT NULL;
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
        """What *entry* adds to the adapter's tables; the same when it comes back out of the log."""


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
        self.on_fault: Callable[[Exception], None] = lambda _error: None  # called on the loop
        self._path = path
        self._schema = SCHEMA + "".join(adapter.tables for adapter in adapters)
        self._connect()
        self._pending: dict[int, Entry] = {}
        self._pending_ids: dict[str, int] = {}
        self._pending_channels: dict[str, dict[int, Message]] = {}
        self._synced = segments.next_seq - 1
        self._queue: SimpleQueue[Sequence[Synced] | None] = SimpleQueue()
        self._chores: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    # Made level with the log

    @property
    def applied_seq(self) -> int:
        """The last sequence that the tables know."""
        return int(self._meta("applied", 0))

    def catch_up(self) -> int:
        """Apply what the log has and the tables have not, drop what the log has lost; return how many entries."""
        try:
            return self._catch_up()
        except sqlite3.DatabaseError as error:
            if not _damaged(error):
                raise
        self._disconnect()
        _remove(self._path)
        self._connect()
        return self._catch_up()

    def start(self) -> None:
        """Begin to apply what `take` is given."""
        self._thread.start()

    def note(self, entry: Entry) -> None:
        """An entry was appended to the log: it can be found from now on."""
        self._pending[entry.seq] = entry
        for id in self._chosen_ids(entry):
            self._pending_ids[id] = entry.seq
        if isinstance(entry, Message):
            self._pending_channels.setdefault(entry.channel, {})[entry.seq] = entry

    def take(self, batch: Sequence[Synced]) -> None:
        """A batch is on disk; it is applied soon."""
        self._synced = batch[-1].entry.seq
        self._queue.put(batch)

    def do(self, chore: Callable[[], None]) -> None:
        """Run *chore* in the index's thread, once everything taken before is applied."""
        self._chores.put(chore)
        self._queue.put(())

    def prune(self, before: int) -> None:
        """Forget the messages below sequence *before*, and every id of theirs; facts stay. Only for a chore."""
        with self._write:
            self._write.execute("BEGIN")
            if self._write.execute("DELETE FROM records WHERE seq < ? AND channel IS NOT NULL", (before,)).rowcount:
                self._write.execute("DELETE FROM ids WHERE seq < ? AND seq NOT IN (SELECT seq FROM records)", (before,))

    def close(self) -> None:
        """Apply what was taken and stop."""
        self._stopping.set()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._disconnect()

    # Asked

    @property
    def synced_seq(self) -> int:
        """The last sequence that was taken: it is on disk, and a chore given from now on finds it applied."""
        return self._synced

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
        row = self.one("SELECT offset FROM records WHERE seq = ?", (seq,))
        return None if row is None else self._load(seq, row[0])

    def offset(self, seq: int) -> int:
        """Where the record *seq* stands in its segment; 0 where the tables do not know."""
        row = self.one("SELECT offset FROM records WHERE seq = ?", (seq,))
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
        """At most *limit* (`PAGE` at most) messages of *channel* between two sequences, both excluded.

        Fewer than *limit* are the last there are. What cannot be read any more is passed over.
        """
        after, end, limit = max(0, min(after, NEVER)), NEVER if before is None else min(before, NEVER), min(limit, PAGE)
        found: list[Message] = []
        while len(found) < limit and (page := self._page(channel, after, end, sender, newest_first, limit)):
            loaded = (self._pending.get(seq) or self._load(seq, offset) for seq, offset in page)
            found += (entry for entry in loaded if isinstance(entry, Message) and entry.channel == channel)
            after, end = (after, page[-1][0]) if newest_first else (page[-1][0], end)
        return found[:limit]

    def _page(
        self, channel: str, after: int, end: int, sender: int | None, newest_first: bool, limit: int
    ) -> list[tuple[int, int]]:
        """The sequences and offsets of the next *limit* messages, on disk or applied already."""
        where = "channel = ? AND seq > ? AND seq < ?" + ("" if sender is None else " AND sender = ?")
        values = (channel, after, end) if sender is None else (channel, after, end, sender)
        order = "DESC" if newest_first else "ASC"
        sql = f"SELECT seq, offset FROM records WHERE {where} ORDER BY seq {order} LIMIT ?"
        applied: dict[int, int] = dict(self.rows(sql, (*values, limit)))
        pending = {
            seq: 0
            for seq, message in self._pending_channels.get(channel, {}).items()
            if after < seq < end and seq <= self._synced and (sender is None or message.sender.number == sender)
        }
        return sorted((pending | applied).items(), reverse=newest_first)[:limit]

    def latest(self, limit: int) -> Iterator[Message]:
        """The newest messages of all channels, accepted last first; *limit* records are looked at, facts too."""
        before = NEVER
        sql = "SELECT seq, offset, channel FROM records WHERE seq < ? ORDER BY seq DESC LIMIT ?"
        waiting = {seq: entry for seq, entry in self._pending.items() if isinstance(entry, Message)}
        yield from [waiting[seq] for seq in sorted(waiting, reverse=True)][:limit]
        while limit > 0 and (page := self.rows(sql, (before, min(limit, PAGE)))):
            before, limit = page[-1][0], limit - len(page)
            found = (self._load(seq, at) for seq, at, channel in page if channel is not None and seq not in waiting)
            yield from (entry for entry in found if isinstance(entry, Message))

    def newest(self, channel: str, since: int = 0, until: int = NEVER) -> Iterator[Message]:
        """The messages of *channel* whose author says they were made from *since* to before *until* (ms).

        Newest first, by what the author says; those that are not on disk yet are among them.
        """
        waiting = [m for m in self._pending_channels.get(channel, {}).values() if since <= m.timestamp < until]
        waiting.sort(key=_age)
        told = {message.seq for message in waiting}  # some may be applied before they are asked for
        sql = (
            "SELECT seq, offset, at FROM records WHERE channel = ? AND at >= ? AND (at, seq) < (?, ?)"
            " ORDER BY at DESC, seq DESC LIMIT ?"
        )
        last = (until, 0)
        while page := self.rows(sql, (channel, since, *last, PAGE)):
            for seq, offset, at in page:
                last = (at, seq)
                if seq not in told and isinstance(message := self._load(seq, offset), Message):
                    while waiting and _age(waiting[-1]) > last:
                        yield waiting.pop()
                    yield message
        yield from reversed(waiting)

    def answers(self, id: str, limit: int = PAGE) -> list[Message]:
        """The messages whose parent is the message with this canonical id, at most *limit* of them."""
        sql = "SELECT seq, offset FROM records WHERE parent = ? LIMIT ?"
        found = {seq: self._load(seq, offset) for seq, offset in self.rows(sql, (id, limit))} | {
            seq: entry for seq, entry in self._pending.items() if isinstance(entry, Message) and entry.parent == id
        }
        return [entry for entry in found.values() if isinstance(entry, Message)]

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

    def peers(self, after: int = -1) -> list[Peer]:
        """The durable peers with numbers above *after*, lowest number first, at most `PAGE` of them."""
        rows = self.rows("SELECT * FROM peers WHERE number > ? ORDER BY number LIMIT ?", (after, PAGE))
        return [Peer(*row) for row in rows]

    def channels(self) -> Iterator[tuple[str, dict[str, str], bool]]:
        """Every channel with its addresses, and whether it is open."""
        name = ""
        sql = "SELECT name, addresses, open FROM channels WHERE name > ? ORDER BY name LIMIT ?"
        while rows := self.rows(sql, (name, PAGE)):
            for name, addresses, is_open in rows:
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
        """What an adapter asks of its own tables; the statement uses an index and a limit.

        Raises `Unavailable` where the file cannot be read.
        """
        try:
            return self._read.execute(sql, [_plain(value) for value in values]).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(f"the index cannot be read: {error}") from error
        except OverflowError:
            return []  # no column holds a number beyond 64 bits

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any | None:
        """The first row of an answer, if there is one."""
        rows = self.rows(sql, values)
        return rows[0] if rows else None

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
            if entries and not self._applies(entries):
                return
            while not self._chores.empty():
                self._chores.get()()

    def _applies(self, entries: Sequence[Synced]) -> bool:
        """Apply *entries*, however often it takes; False where the index stops before it could."""
        while True:
            try:
                self._apply(entries)
            except sqlite3.Error as error:
                self._post(partial(self.on_fault, error))
                if self._stopping.wait(RETRY):
                    return False  # the next start catches up
            else:
                self._post(partial(self._applied, entries))
                return True

    def _apply(self, batch: Sequence[Synced]) -> None:
        """Put a batch into the tables, in one transaction and one statement for each table."""
        last = batch[-1].entry
        tables: dict[str, list[tuple[Any, ...]]] = {"meta": [("applied", last.seq), ("time", last.time)]}
        for synced in batch:
            for table, values in self._rows(synced):
                tables.setdefault(table, []).append(values)
        with self._write:
            self._write.execute("BEGIN")
            for table, rows in tables.items():
                columns = ",".join(f"json_extract(value,'$[{i}]')" for i in range(len(rows[0])))
                self._write.execute(
                    f"INSERT OR REPLACE INTO {table} SELECT {columns} FROM json_each(?)", (_json(rows),)
                )

    def _rows(self, synced: Synced) -> Iterator[tuple[str, tuple[Any, ...]]]:
        entry, _, offset = synced
        if isinstance(entry, Message):
            sender = entry.sender.number
            yield "records", (entry.seq, offset, entry.channel, sender, entry.timestamp, entry.parent)
        else:
            yield "records", (entry.seq, offset, None, None, None, None)
            yield from _fact_rows(entry)
        for id in self._chosen_ids(entry):
            yield "ids", (id, entry.seq)
        for adapter in self._adapters:
            yield from adapter.rows(entry)

    # On the loop

    def _applied(self, batch: Sequence[Synced]) -> None:
        for synced in batch:
            entry = synced.entry
            self._pending.pop(entry.seq, None)
            for id in self._chosen_ids(entry):
                if self._pending_ids.get(id) == entry.seq:
                    del self._pending_ids[id]
            if isinstance(entry, Message) and (channel := self._pending_channels.get(entry.channel)) is not None:
                channel.pop(entry.seq, None)
                if not channel:
                    del self._pending_channels[entry.channel]

    def _chosen_ids(self, entry: Entry) -> Sequence[str]:
        """The ids of *entry* that do not say themselves which record they belong to."""
        if not isinstance(entry, Message) or (entry.numbered and entry.key is None):
            return entry.ids
        own = () if self._ids.seq(entry.id) == entry.seq else (entry.id,)
        return (*entry.ids, *own) if entry.key is None else (*entry.ids, entry.key, *own)

    def _known_seq(self, id: str) -> int | None:
        row = self.one("SELECT seq FROM ids WHERE id = ?", (id,))
        return None if row is None else int(row[0])

    def _load(self, seq: int, offset: int) -> Entry | None:
        try:
            return decode(self._segments.read(seq, offset))
        except (BadRecord, OSError):
            return None  # never served; `Segments` reports it

    def _entries_after(self, seq: int) -> Iterator[Synced]:
        for line in self._segments.scan(seq):
            try:
                yield Synced(decode(line.data), line.first, line.offset)
            except BadRecord as error:
                self._segments.fault(Fault(self._segments.path(line.first).name, line.offset, str(error)))

    def _meta(self, key: str, default: Any) -> Any:
        row = self._read.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return default if row is None else row[0]

    def _catch_up(self) -> int:
        if self.applied_seq >= self._segments.next_seq:
            self._start_over()
        done = 0
        entries = self._entries_after(self.applied_seq)
        while batch := list(islice(entries, BATCH)):
            self._apply(batch)
            done += len(batch)
        return done

    def _connect(self) -> None:
        self._write = _open(self._path, self._schema)
        self._read = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)

    def _disconnect(self) -> None:
        self._read.close()
        self._write.close()

    def _start_over(self) -> None:
        """The log ends before the tables do (it was replaced, or the disk lied): begin again."""
        with self._write:
            self._write.execute("BEGIN")
            for (table,) in self._write.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                if table != "meta":
                    self._write.execute(f"DELETE FROM {table}")
            self._write.execute("DELETE FROM meta WHERE key != 'schema'")


def _age(message: Message) -> tuple[int, int]:
    return message.timestamp, message.seq


def _fact_rows(fact: Fact) -> Iterator[Row]:
    match fact.kind, fact.fields:
        case "peer", {"first": first, "count": count}:
            yield Row("meta", ("next_number", first + count))
        case "peer", {"peer": number, "protocol": protocol, "sender": identity, **rest}:
            yield Row("peers", (number, protocol, identity, rest.get("name")))
        case "channel", {"channel": name, "addresses": addresses, "open": is_open}:
            yield Row("channels", (name, dumps(addresses).decode(), int(is_open)))


def _plain(value: Any) -> Any:
    """*value* as a column can hold it: half characters and NUL, which SQLite's JSON has no place for, written out."""
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def _json(rows: Sequence[tuple[Any, ...]]) -> str:
    text = dumps(rows)
    if b"\\u0000" in text or b"\\ud" in text:  # perhaps what must be written out
        text = dumps([[_plain(value) for value in row] for row in rows])
    return text.decode()


def _damaged(error: sqlite3.Error) -> bool:
    """Whether *error* says that the file is not, or no longer, a database."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _remove(path: Path) -> None:
    for name in (path.name, path.name + "-wal", path.name + "-shm"):
        path.with_name(name).unlink(missing_ok=True)


def _open(path: Path, schema: str) -> sqlite3.Connection:
    """The database at *path*, made anew where it is missing, damaged, or of another make."""
    for _attempt in range(2):
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                connection.executescript(schema)
                connection.execute("INSERT INTO meta VALUES ('schema', ?)", (schema,))
            whole = path.stat().st_size % connection.execute("PRAGMA page_size").fetchone()[0] == 0
            if whole and connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (schema,):
                return connection
        except sqlite3.DatabaseError as error:
            if not _damaged(error) and "no such" not in str(error):
                connection.close()
                raise
        connection.close()
        _remove(path)
    raise sqlite3.DatabaseError(f"{path} cannot be made anew; move it away and start again")
