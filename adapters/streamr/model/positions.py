"""How far each publisher has come in each channel: what lies beyond that cannot have been said before.

Asking the index for a copy of each message would cost more than all else that is done for it. Nearly every message is
newer than all of its publisher's in its channel, and so has an id that nobody can have used.
"""

from __future__ import annotations

from collections.abc import Callable

from adapters.streamr.wire.checks import MAX_INTEGER
from gateway.core.bounded import BoundedMap

MAX_POSITIONS = 65_536  # publishers in channels; of the others it is known how far they had come together
MAX_FLOORS = 4_096  # channels of which that is at hand; the index is asked for the others

Position = tuple[int, int]  # a timestamp in ms and a sequence number


class PublisherPositions:
    """*newest* tells the last timestamp that the log has of a channel, 0 without one; it is asked once for each."""

    def __init__(self, newest: Callable[[str], int]) -> None:
        self._newest = newest
        self._reached = BoundedMap[tuple[str, str], Position](MAX_POSITIONS, self._forget)
        self._floors = BoundedMap[str, int](MAX_FLOORS)  # by channel, for publishers that are not remembered

    def beyond(self, channel: str, publisher: str, position: Position) -> bool:
        """Whether *publisher* (whoever has no name is one) has said nothing in *channel* at *position* or later."""
        return position > self.reached(channel, publisher)

    def reached(self, channel: str, publisher: str) -> Position:
        """What *publisher* says in *channel* at a position behind this one is new."""
        return self._reached.get((channel, publisher)) or (self._floor(channel), MAX_INTEGER)

    def advance(self, channel: str, publisher: str, position: Position) -> None:
        """*publisher* says something in *channel* at *position*."""
        self._reached[channel, publisher] = max(position, self.reached(channel, publisher))

    def _forget(self, who: tuple[str, str], last: Position) -> None:
        channel, _ = who
        self._floors[channel] = max(self._floor(channel), last[0])

    def _floor(self, channel: str) -> int:
        floor = self._floors.get(channel)
        if floor is None:
            floor = self._floors[channel] = self._newest(channel)
        return floor
