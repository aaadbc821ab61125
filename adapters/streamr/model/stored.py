"""The stored messages of a stream partition, in the order of the protocol, for resends and the REST history.

Messages are ordered by timestamp and sequence number; those with equal ones, in the order they were accepted. The index
knows every message by its channel and its author's time, which is that timestamp, except for messages of other
protocols that had to be placed after their predecessors: those few have a row of their own in `streamr_places`, and so
have those that do not fit the protocol and have no position. Messages that are not in the tables yet are merged from
memory.

`StreamrParts.stored` reads the messages of a channel (`ids.channel_of`), and `Forms.stream_message` converts each.

Invariants. An answer contains what was accepted before the request, and nothing later. Memory holds no more than a page
of keys, 1 MiB of the messages of one millisecond, and `MAX_KEPT_SIZE` bytes of others. After each `SLICE` steps of
work, more of which a long message takes, an iterator yields None instead of a message: the reader then yields to
others, and continues at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Any, NamedTuple

from adapters.streamr.wire.checks import MAX_INTEGER
from gateway.core.message import Message
from gateway.storage.index_queries import PAGE, Lookup
from gateway.storage.index_schema import Row

SLICE = 8  # messages that are read, some 30 microseconds each, between two chances for others
STEP_BYTES = 16 << 10  # bytes of content that count as another message: long ones take longer
MAX_GROUP = 256  # messages of one millisecond that are sorted together; more come in the order they were taken
MAX_KEPT, MAX_KEPT_SIZE = 128, 128 << 10  # messages, and bytes of their contents, that are not read twice
MAX_GROUP_SIZE = 1 << 20  # bytes of their contents that are held meanwhile; the others are read again

TABLE = """
CREATE TABLE streamr_places (seq INTEGER PRIMARY KEY, channel TEXT NOT NULL, timestamp INTEGER);
CREATE INDEX streamr_places_timestamp ON streamr_places (channel, timestamp, seq) WHERE timestamp IS NOT NULL;
"""
TABLES_BY_RECORD = ("streamr_places",)
# A page of keys (timestamp, seq, offset in the log), and whether this is where the message stands.
# fmt: off
_BY_TIME = (
    "SELECT m.at, m.seq, m.offset, p.seq IS NULL FROM messages m LEFT JOIN streamr_places p ON p.seq = m.seq"
    " WHERE m.channel = ? AND (m.at, m.seq) {0} (?, ?) ORDER BY m.at {1}, m.seq {1} LIMIT ?"
)
_ELSEWHERE = (
    "SELECT p.timestamp, p.seq, m.offset, 1 FROM streamr_places p CROSS JOIN messages m ON m.seq = p.seq"
    " WHERE p.channel = ? AND p.timestamp IS NOT NULL AND (p.timestamp, p.seq) {0} (?, ?)"
    " ORDER BY p.timestamp {1}, p.seq {1} LIMIT ?"
)
# fmt: on
OLDEST_FIRST = (_BY_TIME.format(">", "ASC"), _ELSEWHERE.format(">", "ASC"))
NEWEST_FIRST = (_BY_TIME.format("<", "DESC"), _ELSEWHERE.format("<", "DESC"))


def position_row(message: Message, link: Sequence[int] | None) -> Row:
    """The row of a bridged *message* whose *link* is not at the position of its time, or that has none."""
    return Row("streamr_places", (message.seq, message.channel, None if link is None else link[0]))


class ChainPosition(NamedTuple):
    """The position of a message in its stream partition, and its chain; the publisher is in lower case."""

    timestamp: int
    sequence: int
    publisher: str
    chain: str


class MessageRange(NamedTuple):
    """The messages between two positions (timestamp, sequence number), both included.

    *publisher* (in lower case) and *chain* restrict them further; None means any.
    """

    start: tuple[int, int] = (0, 0)
    end: tuple[int, int] = (MAX_INTEGER, MAX_INTEGER)
    publisher: str | None = None
    chain: str | None = None

    def contains(self, place: ChainPosition) -> bool:
        """Whether a message at *place* is in the range."""
        return (
            self.start <= place[:2] <= self.end
            and self.publisher in (None, place.publisher)
            and self.chain in (None, place.chain)
        )


MessageFilter = Callable[[Message], bool]
RowKey = tuple[int, int, int | Message | None]  # its place, seq; the message, its offset in the log, or nothing to show


class StoredMessages:
    """Reads the messages of a channel in the order of the protocol.

    *place* gives the position of a message, None for one that has no form in the protocol; *next_seq* is the sequence
    of the next entry of the log. The iterators raise `Unavailable` when the index cannot be read.
    """

    def __init__(
        self, index: Lookup, place: Callable[[Message], ChainPosition | None], next_seq: Callable[[], int]
    ) -> None:
        self._index = index
        self._place = place
        self._next_seq = next_seq

    def between(self, channel: str, span: MessageRange) -> Iterator[Message | None]:
        """The messages of *span*, oldest first; None whenever a slice of the work is done."""
        return self._messages(self._snapshot(channel), span)

    def last(self, channel: str, count: int, shows: MessageFilter) -> Iterator[Message | None]:
        """The newest *count* messages for which *shows* is true, oldest first; None whenever a slice is done."""
        return self._last(self._snapshot(channel), count, shows)

    def _snapshot(self, channel: str) -> _Snapshot:
        return _Snapshot(self._index, self._place, channel, self._next_seq())

    def _last(self, view: _Snapshot, count: int, shows: MessageFilter) -> Iterator[Message | None]:
        """Walk back until *count* messages are passed and their millisecond is over, then forward from there.

        A few messages are kept on the way back, so that they are not read again: 144 us instead of 294 for ten.
        """
        passed, start, work, size = 0, MAX_INTEGER, 0, 0
        kept: list[tuple[int, RowKey]] = []  # timestamps, and (sequence number, seq, message)
        for timestamp, seq, where in view.keys(MAX_INTEGER, newest_first=True, page=count + 1):
            if passed >= count and timestamp != start:
                break
            start = timestamp
            message = self._read(seq, where)
            if message is not None and shows(message) and (place := self._place(message)) is not None:
                passed += 1
                size += len(message.content)
                if passed <= MAX_KEPT and size <= MAX_KEPT_SIZE:
                    kept.append((timestamp, (place.sequence, seq, message)))
                else:
                    kept.clear()
            work += _step_count(message)
            if work >= SLICE:
                work = 0
                yield None
        if len(kept) == passed:
            kept.sort(key=lambda pair: (pair[0], *_position(pair[1])))
            yield from self._in_slices([key for _, key in kept[max(0, passed - count) :]] if count else ())
            return
        del kept
        surplus = passed - count
        for message in self._messages(view, MessageRange((start, 0))) if count else ():
            if message is None:
                yield None
            elif shows(message):
                if surplus <= 0:
                    yield message
                surplus -= 1

    def _messages(self, view: _Snapshot, span: MessageRange) -> Iterator[Message | None]:
        group: list[RowKey] = []  # of one millisecond: sequence number, seq, and the message or where it is
        now = work = size = 0
        for timestamp, seq, where in view.keys(span.start[0]):
            if timestamp != now or len(group) >= MAX_GROUP:
                yield from self._in_slices(sorted(group, key=_position))
                group, now, size = [], timestamp, 0
            if timestamp > span.end[0]:
                return
            message = self._read(seq, where)
            place = None if message is None else self._place(message)
            if message is not None and place is not None and span.contains(place):
                size += len(message.content)
                group.append((place.sequence, seq, message if size <= MAX_GROUP_SIZE else where))
            work += _step_count(message)
            if work >= SLICE:
                work = 0
                yield None
        yield from self._in_slices(sorted(group, key=_position))

    def _in_slices(self, keys: Sequence[RowKey]) -> Iterator[Message | None]:
        work = 0
        for _, seq, where in keys:
            if (message := self._read(seq, where)) is not None:
                yield message
            work += _step_count(message)
            if work >= SLICE:
                work = 0
                yield None

    def _read(self, seq: int, where: int | Message | None) -> Message | None:
        return self._index.read(seq, where) if isinstance(where, int) else where


class _Snapshot:
    """The keys of a channel's messages at this moment; later messages are skipped."""

    def __init__(
        self, index: Lookup, place: Callable[[Message], ChainPosition | None], channel: str, next_seq: int
    ) -> None:
        self._index = index
        self._channel = channel
        self._next_seq = next_seq
        waiting = ((message, place(message)) for message in index.unapplied(channel))
        self._waiting: list[RowKey] = sorted(
            ((at.timestamp, message.seq, message) for message, at in waiting if at is not None), key=_position
        )
        self._unapplied = {seq for _, seq, _ in self._waiting}  # they may be in the tables before they are asked for

    def keys(self, timestamp: int, *, newest_first: bool = False, page: int = PAGE) -> Iterator[RowKey]:
        """All keys from *timestamp* on, or down from it; the first *page* has so many at most."""
        waiting = reversed(self._waiting) if newest_first else self._waiting
        cursor = (timestamp + 1, 0) if newest_first else (timestamp, 0)
        pages = (self._pages(sql, cursor, page) for sql in (NEWEST_FIRST if newest_first else OLDEST_FIRST))
        inside = (key for key in waiting if newest_first or key[0] >= timestamp)
        return merge(*pages, inside, key=_position, reverse=newest_first)

    def _pages(self, sql: str, cursor: tuple[int, int], limit: int) -> Iterator[RowKey]:
        while page := self._index.rows(sql, (self._channel, *cursor, min(limit, PAGE))):
            limit = PAGE
            for timestamp, seq, offset, here in page:
                cursor = (timestamp, seq)
                shown = here and seq < self._next_seq and seq not in self._unapplied
                yield timestamp, seq, offset if shown else None


def _position(key: tuple[int, int, Any]) -> tuple[int, int]:
    return key[:2]


def _step_count(message: Message | None) -> int:
    """How many messages of usual length take as long to read as *message*."""
    return 1 if message is None else 1 + len(message.content) // STEP_BYTES
