"""Reads the log by position for webhooks: what follows a sequence, in pages, whatever is in memory.

A message is read here once it is on disk and in the index, so a burst costs nothing but the place it takes in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.message import Message
from gateway.storage.index import Index

PAGE = 256  # messages that are looked at in one turn of the loop
FOLLOWING = "SELECT seq, offset, channel FROM messages WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"


class BacklogEntry(NamedTuple):
    """The position of a message in the log."""

    seq: int
    offset: int
    channel: str


class Backlog:
    """The messages of the log, as webhooks read them."""

    def __init__(self, index: Index) -> None:
        self._index = index

    @property
    def end(self) -> int:
        """The last sequence that can be read."""
        return self._index.level

    @property
    def first_kept(self) -> int:
        """The first sequence whose message retention has not removed."""
        return self._index.first_kept

    def page(self, after: int) -> tuple[list[BacklogEntry], int]:
        """Return the messages after *after*, and the sequence up to which they are all; raise `Unavailable`."""
        end = self.end
        found = [BacklogEntry(*row) for row in self._index.rows(FOLLOWING, (after, end, PAGE))]
        return found, found[-1].seq if len(found) == PAGE else max(after, end)

    def message(self, place: BacklogEntry) -> Message | None:
        """Return the message at *place*; None if it is retired or damaged, which the log reports."""
        return self._index.read(place.seq, place.offset)

    def find(self, seq: int) -> Message | None:
        """Return the message with this sequence; None if it is retired or damaged."""
        found = self._index.entry(seq)
        return found if isinstance(found, Message) else None
