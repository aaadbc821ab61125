"""When messages are taken, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .message import Message, MessageIds


class Stamper:
    """Gives messages their seq, time and id. Time never goes back: not below *last_time* (ms) either.

    *clock* gives ms since 1970.
    """

    def __init__(self, ids: MessageIds, clock: Callable[[], int], last_time: int) -> None:
        self._ids = ids
        self._clock = clock
        self._time = last_time

    def now(self) -> int:
        """The time in ms, never less than it was."""
        self._time = now = max(self._time, self._clock())
        return now

    def stamp(self, run: Sequence[Message], seq: int) -> None:
        """Give each of a *run* its seq, the first one *seq*, and what else it has not yet."""
        now = self.now()
        head = self._ids.head(now)
        for message in run:
            message.seq, message.time = seq, now
            if not message.timestamp:
                message.timestamp = now
            if not message.id:
                # as `MessageIds.make` does, which would be a call for each
                message.id, message.id_has_seq = head + seq.to_bytes(6).hex(), True
            seq += 1

    def stamp_direct(self, message: Message, number: int) -> None:
        """Give *message*, which is never logged, its time, and an id that carries *number*."""
        message.time = now = self.now()
        message.timestamp = message.timestamp or now
        message.id = message.id or self._ids.make(now, number)
