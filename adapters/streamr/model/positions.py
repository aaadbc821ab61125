"""The last position of each author in each channel: a message beyond it cannot be a duplicate.

To look up every message in the index would cost more than everything else that is done for it. Nearly every message is
newer than all others of its author in its channel, and so has an unused id.
"""

from __future__ import annotations

from collections.abc import Callable

from adapters.streamr.wire.checks import MAX_INTEGER
from gateway.core.bounded_maps import BoundedMap

MAX_POSITIONS = 65_536  # authors in channels; the others share the floor of their channel
MAX_FLOORS = 4_096  # channels whose floor is in memory; the others are looked up in the index

Position = tuple[int, int]  # a timestamp in ms and a sequence number
# A publisher; with the chain if nothing is signed: many connections may publish without a name, each in its own chain.
Author = str | tuple[str, str]


class PublisherPositions:
    """Remembers positions. *newest* returns the last timestamp of a channel in the log, 0 if it has none."""

    def __init__(self, newest: Callable[[str], int]) -> None:
        self._newest = newest
        self._reached = BoundedMap[tuple[str, Author], Position](MAX_POSITIONS, self._forget)
        self._floors = BoundedMap[str, int](MAX_FLOORS)  # by channel, for authors that are not remembered

    def beyond(self, channel: str, author: Author, position: Position) -> bool:
        """Whether *author* has published nothing in *channel* at *position* or later."""
        return position > self.reached(channel, author)

    def reached(self, channel: str, author: Author) -> Position:
        """The position beyond which everything that *author* publishes in *channel* is new."""
        return self._reached.get((channel, author)) or (self._floor(channel), MAX_INTEGER)

    def advance(self, channel: str, author: Author, position: Position) -> None:
        """Record that *author* publishes in *channel* at *position*."""
        self._reached[channel, author] = max(position, self.reached(channel, author))

    def _forget(self, who: tuple[str, Author], last: Position) -> None:
        channel, _ = who
        self._floors[channel] = max(self._floor(channel), last[0])

    def _floor(self, channel: str) -> int:
        floor = self._floors.get(channel)
        if floor is None:
            floor = self._floors[channel] = self._newest(channel)
        return floor
