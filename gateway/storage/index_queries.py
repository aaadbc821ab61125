"""Queries over the log: by channel, by time, by id.

Laws of this file. Everything here runs on the loop. Entries that are not in the tables yet are kept in memory and
joined to every answer, so that a query sees everything that was accepted before it. Content is read from the log, and
its checksum is verified each time: a damaged record is skipped and reported. An answer is complete or an error: if the
tables or the log cannot be read, everything here raises `Unavailable`. Every statement uses an index of the tables and
has a limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gateway.core.contracts import Receipt
from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps, loads
from gateway.core.message import LATE_AFTER, Message, MessageIds, Peer

from .index_file import Tables
from .layout import BEYOND_ALL
from .record import BadRecord, Entry, Fact, decode_body
from .segments import Segments
from .unapplied import Unapplied

PAGE = 256  # the most rows that one statement returns
SCAN = 1_024  # records that one `scan` looks at: half a millisecond of work, whether they match or not
LAST_SEQ_OF_CHANNELS = "SELECT value, (SELECT max(seq) FROM records WHERE channel = value) FROM json_each(?)"
OFFSET_OF_SEQ = "SELECT offset FROM records WHERE seq = ?"
SEQ_OF_ID = "SELECT seq FROM known WHERE id = ? ORDER BY seq DESC LIMIT 1"
ID_BETWEEN = "SELECT 1 FROM known WHERE id >= ? AND id < ? LIMIT 1"
RECORDS_BETWEEN = "SELECT seq, offset, channel FROM records WHERE seq > ? AND seq < ? ORDER BY seq LIMIT ?"
SEQ_OF_SENDER = "SELECT seq FROM records WHERE channel = ? AND sender = ? ORDER BY seq DESC LIMIT 1"


class TimeCursor(NamedTuple):
    """A place in the order of authors' times: a time (ms), and a sequence among the messages of that time."""

    at: int
    seq: int


class Place(NamedTuple):
    """The place of a message: its author's time (ms), its sequence, its offset in its segment, and its sender."""

    at: int
    seq: int
    offset: int
    sender: int


class ScannedPage(NamedTuple):
    """Messages of some channels, and the sequence up to which there are no others."""

    messages: list[Message]
    last: int


class Lookup:
    """Answers queries from the tables and from the entries that are not in them yet."""

    def __init__(self, tables: Tables, segments: Segments, ids: MessageIds) -> None:
        self._tables = tables
        self._segments = segments
        self._ids = ids
        self._unapplied = Unapplied(self._lookup_ids)
        self._synced = segments.next_seq - 1

    def add_unapplied(self, entries: Sequence[Entry]) -> None:
        """Add entries, a fact or messages of one channel, that were appended to the log: queries find them at once."""
        self._unapplied.add(entries)

    @property
    def synced_seq(self) -> int:
        """The last sequence that is on disk; a task submitted from now on finds it applied."""
        return self._synced

    def find(self, id: str) -> Receipt | None:
        """The receipt of the message with this canonical or chosen id, on disk or not yet."""
        found = self.find_message(id)
        return Receipt(found.seq, found.id, found.time, found.undelivered) if found else None

    def find_message(self, id: str) -> Message | None:
        """The message with this canonical or chosen id, on disk or not yet."""
        own = self._ids.seq(id)
        entry = self.entry(own) if own is not None else None
        if not isinstance(entry, Message) or entry.id != id:
            seq = self._unapplied.seq(id) or self.indexed_seq(id)
            entry = self.entry(seq) if seq is not None else None
        return entry if isinstance(entry, Message) else None

    def message(self, id: str) -> Message | None:
        """The message with this canonical or chosen id, once it is on disk."""
        return found if (found := self.find_message(id)) and found.seq <= self._synced else None

    def entry(self, seq: int) -> Entry | None:
        """The record with this sequence number."""
        if (pending := self._unapplied.get(seq)) is not None:
            return pending
        row = self.one(OFFSET_OF_SEQ, (seq,))
        return None if row is None else self._load(seq, row[0])

    @property
    def first_kept(self) -> int:
        """The first sequence whose message retention has not removed."""
        return self._segments.first_kept

    @property
    def incomplete(self) -> bool:
        """Whether any record may be missing: removed by retention, or damaged."""
        first_seqs = self._segments.first_seqs
        return bool(self._segments.faults) or (bool(first_seqs) and self.first_kept != first_seqs[0])

    def kept_since(self, now: int) -> int:
        """When the oldest record that may be a message was accepted (ms); 0 if retention has removed none.

        If the clock was ahead then, the time is unknown and is assumed to be `LATE_AFTER` before *now*.
        """
        first, first_seqs = self._segments.first_kept, self._segments.first_seqs
        entry = self.entry(first) if first_seqs and first != first_seqs[0] else None
        return 0 if entry is None else entry.time if entry.time <= now else now - LATE_AFTER

    def read(self, seq: int, offset: int) -> Message | None:
        """The message with this sequence number, which stands at *offset*; None if it is retired or damaged."""
        entry = self._unapplied.get(seq) or self._load(seq, offset)
        return entry if isinstance(entry, Message) else None

    def offset(self, seq: int) -> int:
        """Where the record *seq* stands in its segment; 0 if the tables do not know."""
        row = self.one(OFFSET_OF_SEQ, (seq,))
        return 0 if row is None else int(row[0])

    def indexed_seq(self, id: str) -> int | None:
        """The sequence that the tables have for an *id* from which it does not follow; None if they have none."""
        row = self.one(SEQ_OF_ID, (id,))
        return None if row is None else int(row[0])

    def has_id_beginning(self, prefix: str) -> bool:
        """Whether the tables have an id that begins with *prefix*, which is not empty."""
        return self.one(ID_BETWEEN, (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))) is not None

    def has_message_by(self, sender: int, channel: str) -> bool:
        """Whether the peer with the number *sender* has a message in *channel*, on disk or not yet; none is read."""
        return self.one(SEQ_OF_SENDER, (channel, sender)) is not None or any(
            message.sender.number == sender for message in self._unapplied.messages(channel)
        )

    def history(
        self,
        channel: str,
        *,
        after: int = 0,
        before: int | None = None,
        sender: int | None = None,
        newest_first: bool = False,
        limit: int = PAGE,
        size: int = BEYOND_ALL,
    ) -> list[Message]:
        """At most *limit* (`PAGE` at most) messages of *channel* between two sequences, both excluded.

        The answer ends early with the message that brings the content to *size* bytes; otherwise fewer than *limit*
        messages mean that there are no more. Damaged messages are skipped.
        """
        after, limit = max(0, min(after, BEYOND_ALL)), min(limit, PAGE)
        end = BEYOND_ALL if before is None else min(before, BEYOND_ALL)
        found: list[Message] = []
        while len(found) < limit and (page := self._page(channel, after, end, sender, newest_first, limit)):
            for seq, offset in page:
                entry = self._unapplied.get(seq) or self._load(seq, offset)
                if isinstance(entry, Message) and entry.channel == channel:
                    found.append(entry)
                    size -= len(entry.content)
                if size <= 0:
                    return found[:limit]
            after, end = (after, page[-1][0]) if newest_first else (page[-1][0], end)
        return found[:limit]

    def by_time(
        self,
        channel: str,
        cursor: TimeCursor,
        end: int,
        *,
        newest_first: bool,
        limit: int,
    ) -> list[Place]:
        """At most *limit* places of messages of *channel*, in the order of (author's time, sequence), beyond *cursor*.

        *end* is the author's time (ms) that ends it: excluded for oldest first, included for newest first.
        """
        operator, order, bound = ("<", "DESC", "at >= ?") if newest_first else (">", "ASC", "at < ?")
        sql = (
            f"SELECT at, seq, offset, sender FROM records WHERE channel = ? AND {bound} AND (at, seq) {operator} (?, ?)"
            f" ORDER BY at {order}, seq {order} LIMIT ?"
        )
        places = {row[1]: Place(*row) for row in self.rows(sql, (channel, end, *cursor, limit))}
        for message in self._unapplied.messages(channel):
            at, seq = message.timestamp, message.seq
            beyond = at >= end and (at, seq) < cursor if newest_first else at < end and (at, seq) > cursor
            if beyond and seq <= self._synced:
                places[seq] = Place(at, seq, 0, message.sender.number)
        return sorted(places.values(), reverse=newest_first)[:limit]

    def _page(
        self, channel: str, after: int, end: int, sender: int | None, newest_first: bool, limit: int
    ) -> list[tuple[int, int]]:
        """The sequences and offsets of the next *limit* messages that are on disk."""
        where = "channel = ? AND seq > ? AND seq < ?" + ("" if sender is None else " AND sender = ?")
        values = (channel, after, end) if sender is None else (channel, after, end, sender)
        order = "DESC" if newest_first else "ASC"
        sql = f"SELECT seq, offset FROM records WHERE {where} ORDER BY seq {order} LIMIT ?"
        applied: dict[int, int] = dict(self.rows(sql, (*values, limit)))
        pending = {
            message.seq: 0
            for message in self._unapplied.messages(channel)
            if after < message.seq < end
            and message.seq <= self._synced
            and (sender is None or message.sender.number == sender)
        }
        return sorted((pending | applied).items(), reverse=newest_first)[:limit]

    def scan(
        self,
        wanted: Callable[[str], bool],
        *,
        after: int,
        before: int | None = None,
        limit: int = PAGE,
        size: int = BEYOND_ALL,
    ) -> ScannedPage:
        """At most *limit* messages of the *wanted* channels between two sequences, both excluded, oldest first.

        It looks at `SCAN` records at most, and ends with the message that brings the content to *size* bytes.
        """
        end = min(self._synced + 1, BEYOND_ALL if before is None else before)
        rows = self.rows(RECORDS_BETWEEN, (after, end, SCAN))
        last = rows[-1][0] if len(rows) == SCAN else end - 1
        places = {seq: offset for seq, offset, channel in rows if channel is not None and wanted(channel)}
        places |= {
            message.seq: 0
            for message in self._unapplied.messages()
            if after < message.seq <= last and wanted(message.channel)
        }
        found: list[Message] = []
        for seq in sorted(places):
            if (message := self.read(seq, places[seq])) is None:
                continue
            found.append(message)
            size -= len(message.content)
            if size <= 0 or len(found) == limit:
                return ScannedPage(found, seq)
        return ScannedPage(found, max(after, last))

    def newest(self, channel: str, since: int = 0, until: int = BEYOND_ALL) -> Iterator[Message]:
        """The messages of *channel* with an author's timestamp from *since* to before *until* (ms).

        Newest first, by that timestamp; messages that are not on disk yet are included.
        """
        waiting = [m for m in self._unapplied.messages(channel) if since <= m.timestamp < until]
        waiting.sort(key=_author_order)
        waiting_seqs = {message.seq for message in waiting}  # some may be applied before they are asked for
        sql = (
            "SELECT seq, offset, at FROM records WHERE channel = ? AND at >= ? AND (at, seq) < (?, ?)"
            " ORDER BY at DESC, seq DESC LIMIT ?"
        )
        last = (until, 0)
        while page := self.rows(sql, (channel, since, *last, PAGE)):
            for seq, offset, at in page:
                last = (at, seq)
                if seq not in waiting_seqs and isinstance(message := self._load(seq, offset), Message):
                    while waiting and _author_order(waiting[-1]) > last:
                        yield waiting.pop()
                    yield message
        yield from reversed(waiting)

    def unapplied(self, channel: str | None = None) -> list[Message]:
        """The messages of a channel, or of all, that may not be in the tables yet, in order of acceptance."""
        return list(self._unapplied.messages(channel))

    def last_seq(self, channel: str) -> int:
        """The sequence of the newest message of *channel* that is on disk, 0 without one."""
        return self.last_seqs((channel,))[channel]

    def last_seqs(self, channels: Sequence[str]) -> dict[str, int]:
        """The same for each of *channels*, with one statement; no record is read."""
        found = {name: seq or 0 for name, seq in self.rows(LAST_SEQ_OF_CHANNELS, (dumps(list(channels)).decode(),))}
        return {channel: max(found.get(channel, 0), self._last_unapplied(channel)) for channel in channels}

    def _last_unapplied(self, channel: str) -> int:
        """The newest message of *channel* that is on disk and may not be in the tables yet."""
        messages = self._unapplied.messages(channel)
        on_disk = bisect_right(messages, self._synced, key=lambda message: message.seq)
        return messages[on_disk - 1].seq if on_disk else 0

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
                yield name, addresses_of(addresses), bool(is_open)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Query an adapter's own tables, and the view `messages` (`gateway.storage.index_schema`).

        The statement must use an index and have a limit. Raises `Unavailable` if the file cannot be read.
        """
        return self._tables.rows(sql, values)

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any | None:
        """The first row of an answer; None if it is empty."""
        rows = self.rows(sql, values)
        return rows[0] if rows else None

    def _remove_applied(self, last: int) -> None:
        """Remove entries up to the sequence *last* from memory: the tables have them now."""
        self._unapplied.remove(last)

    def _chosen_ids(self, entries: Iterable[Entry]) -> list[tuple[str, int]]:
        """The ids from which the sequence does not follow, of each of *entries*, with its sequence."""
        found: list[tuple[str, int]] = []
        for entry in entries:
            if not isinstance(entry, Message):
                continue
            if entry.ids:
                found += [(id, entry.seq) for id in entry.ids]
            if entry.key is not None:
                found.append((entry.key, entry.seq))
            if not entry.id_has_seq and self._ids.seq(entry.id) != entry.seq:
                found.append((entry.id, entry.seq))
        return found

    def _lookup_ids(self, entries: Iterable[Entry]) -> list[tuple[str, int]]:
        """The ids by which unapplied *entries* are found: chosen ones, and those of forms (the adapters' tables)."""
        found = self._chosen_ids(entries)
        for entry in entries:
            if isinstance(entry, Fact) and entry.kind == "form":
                found += [(id, entry.fields["of"]) for id in entry.fields["native"].values()]
        return found

    def _load(self, seq: int, offset: int) -> Entry | None:
        """The record at *offset*; None if it is damaged; raises `Unavailable` if it cannot be read now."""
        try:
            body = self._segments.read(seq, offset)
        except BadRecord:
            return None  # reported by `Segments`
        except OSError as error:
            raise Unavailable(f"the log cannot be read: {error.strerror or error}") from error
        try:
            return decode_body(body)
        except BadRecord as error:  # although its checksum is right
            self._segments.report_damage(seq, offset, str(error))
            return None


def addresses_of(text: str) -> dict[str, str]:
    """The addresses in a row of `channels`; raises `ValueError` if the row is damaged."""
    addresses = loads(text)
    if type(addresses) is not dict or not all(type(each) is str for each in addresses.values()):
        raise ValueError(f"these are not addresses: {text!r}")
    return addresses


def _author_order(message: Message) -> tuple[int, int]:
    return message.timestamp, message.seq
