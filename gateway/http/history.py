"""Reads the history for REST: pages of a channel, one message by its id, and the log itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal
from urllib.parse import quote, urlencode

from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps
from gateway.core.message import Message
from gateway.core.outbox import LOW_WATER
from gateway.runtime import Gateway
from gateway.storage.segments import Segments, parse_header

from . import views
from .problems import Problem, shortened

Order = Literal["asc", "desc"]

PAGE = 32  # messages, or `LOW_WATER` bytes of content, that are read from the log in one turn of the loop
MAX_ANSWER = 4 << 20  # bytes of content after which a page ends early; `next` continues it


@dataclass
class HistoryQuery:
    """A query of the history of a channel, and how far it was answered."""

    channel: str
    after: int
    before: int | None
    limit: int
    sender: int | None
    order: Order

    def slices(self, gateway: Gateway) -> Iterator[bytes]:
        """Yield one page, with the URL of the next, in slices for `gateway.http.paced`."""
        count = size = 0
        before, more = b'{"messages":[', True
        while more and count < self.limit and size < MAX_ANSWER:
            page = self._read(gateway, min(PAGE, self.limit - count))
            more = bool(page)
            parts: list[bytes] = []
            for message in page:
                parts += (before, views.message(gateway.peers, message))
                before = b","
                count += 1
                size += len(parts[-1])
                self._advance(message)
            yield b"".join(parts)
        more = more and bool(self._read(gateway, 1))
        next = dumps(self._next_url() if more else None)
        yield b'%b],"next":%b}' % (b"" if count else before, next)

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

    def _advance(self, message: Message) -> None:
        if self.order == "desc":
            self.before = message.seq
        else:
            self.after = message.seq

    def _next_url(self) -> str:
        asked = {name: value for name, value in vars(self).items() if name != "channel" and value is not None}
        return f"/v1/channels/{quote(self.channel, safe='')}/messages?{urlencode(asked)}"


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
    return _slices(islice(found, limit))


def _slices(lines: Iterator[bytes]) -> Iterator[bytes]:
    some: list[bytes] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size >= LOW_WATER:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


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
