"""Reads the history for REST: pages of a channel, one message by its id, and the log itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote, urlencode

from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps
from gateway.core.message import Message
from gateway.core.outbox import LOW_WATER
from gateway.runtime import Gateway
from gateway.storage.index_queries import Place, TimeCursor
from gateway.storage.layout import BEYOND_ALL
from gateway.storage.segments import Segments, parse_header
from gateway.storage.word_index import Search, expression_of

from . import views
from .problems import Problem, shortened
from .streaming import coalesce
from .time_range import MAX_TIME, TimeRange

Order = Literal["asc", "desc"]

PAGE = 32  # messages, or `LOW_WATER` bytes of content, that are read from the log in one turn of the loop
LOOKED_AT = 256  # places in one turn, where most may be other senders'
MAX_TURNS = 64  # for one page; beyond them it ends early, perhaps without a message
MAX_ANSWER = 4 << 20  # bytes of content after which a page ends early; `next` continues it


@dataclass
class HistoryQuery(ABC):
    """A query of the history of a channel, and how far it was answered."""

    channel: str
    limit: int
    sender: int | None
    order: Order

    @abstractmethod
    def read(self, gateway: Gateway, limit: int) -> tuple[list[Message], bool]:
        """Return the next messages, at most *limit*, and False at the end; remember how far that is."""

    @abstractmethod
    def has_more(self, gateway: Gateway) -> bool:
        """Whether there may be more than was read."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """Return the parameters of a request that continues here; those that are None are left out."""

    def slices(self, gateway: Gateway) -> Iterator[bytes]:
        """Yield one page, with the URL of the next, in slices for `gateway.http.paced`."""
        count = size = turns = 0
        before, more = b'{"messages":[', True
        while more and count < self.limit and size < MAX_ANSWER and turns < MAX_TURNS:
            page, more = self.read(gateway, min(PAGE, self.limit - count))
            parts: list[bytes] = []
            for message in page:
                parts += (before, views.message(gateway.peers, message))
                before = b","
                count += 1
                size += len(parts[-1])
            turns += 1
            yield b"".join(parts)
        next = dumps(self._next_url() if more and self.has_more(gateway) else None)
        yield b'%b],"next":%b}' % (b"" if count else before, next)

    def _next_url(self) -> str:
        asked = self.position() | {"limit": self.limit, "sender": self.sender, "order": self.order}
        given = {name: value for name, value in asked.items() if value is not None}
        return f"/v1/channels/{quote(self.channel, safe='')}/messages?{urlencode(given)}"


@dataclass
class SequenceQuery(HistoryQuery):
    """Messages between two sequences, both excluded, in their order."""

    after: int
    before: int | None

    def read(self, gateway: Gateway, limit: int) -> tuple[list[Message], bool]:
        """Read from the index."""
        page = self._read(gateway, limit)
        if page and self.order == "desc":
            self.before = page[-1].seq
        elif page:
            self.after = page[-1].seq
        return page, bool(page)

    def has_more(self, gateway: Gateway) -> bool:
        """Look for the next message."""
        return bool(self._read(gateway, 1))

    def position(self) -> dict[str, Any]:
        """Return the two sequences."""
        return {"after": self.after, "before": self.before}

    def _read(self, gateway: Gateway, limit: int) -> list[Message]:
        return gateway.index.history(
            self.channel,
            after=self.after,
            before=self.before,
            sender=self.sender,
            newest_first=self.order == "desc",
            limit=limit,
            size=LOW_WATER,
        )


@dataclass
class TimeQuery(HistoryQuery):
    """Messages with an author's time in a range, in the order of these times, and of sequences where they are equal."""

    times: TimeRange
    cursor: TimeCursor | None = None

    def read(self, gateway: Gateway, limit: int) -> tuple[list[Message], bool]:
        """Look at some places, and read the messages of the sender that is asked for."""
        found: list[Message] = []
        size = 0
        places = self._places(gateway, limit if self.sender is None else LOOKED_AT)
        for place in places:
            self.cursor = TimeCursor(place.at, place.seq)
            if self.sender in (None, place.sender) and (message := gateway.index.read(place.seq, place.offset)):
                found.append(message)
                size += len(message.content)
            if len(found) == limit or size >= LOW_WATER:
                break
        return found, bool(places)

    def has_more(self, gateway: Gateway) -> bool:
        """Look for the next place, of any sender."""
        return bool(self._places(gateway, 1))

    def position(self) -> dict[str, Any]:
        """Return the range as milliseconds, and the cursor."""
        cursor = None if self.cursor is None else f"{self.cursor.at}.{self.cursor.seq}"
        return {"from": self.times.since, "to": self.times.until, "cursor": cursor}

    def _places(self, gateway: Gateway, limit: int) -> list[Place]:
        times, newest_first = self.times, self.order == "desc"
        since = -MAX_TIME if times.since is None else times.since
        until = MAX_TIME if times.until is None else times.until
        start, end = (TimeCursor(until, 0), since) if newest_first else (TimeCursor(since, 0), until)
        return gateway.index.by_time(self.channel, self.cursor or start, end, newest_first=newest_first, limit=limit)


@dataclass
class TextQuery(HistoryQuery):
    """Messages that a search found before the answer began, in the order of sequences."""

    text: str
    times: TimeRange
    after: int
    before: int | None
    places: list[tuple[int, int]] = field(default_factory=list)  # that follow: sequences and offsets

    @property
    def search(self) -> Search:
        """The search that the parameters describe; raises `SearchRefused`."""
        end = BEYOND_ALL if self.before is None else min(self.before, BEYOND_ALL)
        newest_first = self.order == "desc"
        since, until = self.times
        return Search(self.channel, expression_of(self.text), self.after, end, self.sender, since, until, newest_first)

    def read(self, gateway: Gateway, limit: int) -> tuple[list[Message], bool]:
        """Read the next messages that were found."""
        some, self.places = self.places[:limit], self.places[limit:]
        if some and self.order == "desc":
            self.before = some[-1][0]
        elif some:
            self.after = some[-1][0]
        found = (gateway.index.read(seq, offset) for seq, offset in some)
        return [message for message in found if message is not None], bool(self.places)

    def has_more(self, gateway: Gateway) -> bool:  # noqa: ARG002  (it was searched already)
        """Whether more was found."""
        return bool(self.places)

    def position(self) -> dict[str, Any]:
        """Return the text, the range and the two sequences."""
        since, until = self.times
        return {"text": self.text, "from": since, "to": until, "after": self.after, "before": self.before}


def find_message(gateway: Gateway, channel: str, id: str) -> Message:
    """Return the message of *channel* with this canonical or native id; raise `Problem` 404 if there is none."""
    canonical = gateway.bus.canonical_id(id)
    found = None if canonical is None else gateway.index.message(canonical)
    if found is None or found.channel != channel:
        detail = f"there is no message {shortened(id)} in {channel!r}; GET its /messages lists them all"
        raise Problem("unknown-message", detail)
    return found


def log_lines(gateway: Gateway, after: int, limit: int) -> Iterator[bytes]:
    """Yield in slices at most *limit* lines of the log after sequence *after*, of those that are on disk.

    Raises `Unavailable` at once if the index cannot be read, and while yielding if the log cannot: the response is then
    cut off.
    """
    found = _scan(gateway.log.segments, after, gateway.index.offset(after + 1), gateway.log.synced_seq)
    return coalesce(islice(found, limit))


def _scan(segments: Segments, after: int, offset: int, last: int) -> Iterator[bytes]:
    if after >= last:
        return
    try:
        for line in segments.scan(after, offset):
            seq, _ = parse_header(line.data)
            if seq <= last:
                yield line.data
            if seq >= last:  # what follows is not on disk yet
                return
    except OSError as error:
        raise Unavailable(f"the log cannot be read: {error.strerror or error}") from error
