"""The sequence numbers, times and ids of messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .message import Message, MessageIds


class Stamper:
    """Gives messages their seq, time and id. Time never goes back, nor below *last_time* (ms).

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
        """Give the messages of a *run* their seqs from *seq* on, the time, and ids and timestamps if they have none.

        One that was stamped before, and not logged, gets another id with its seq.
        """
        now = self.now()
        head = self._ids.head(now)
        for message in run:
            message.seq, message.time = seq, now
            if not message.timestamp:
                message.timestamp = now
            if message.id_has_seq or not message.id:
                # as in `MessageIds.make`, which would be a call for each message
                message.id, message.id_has_seq = head + seq.to_bytes(6).hex(), True
            seq += 1

    def stamp_direct(self, message: Message, number: int) -> None:
        """Give *message*, which is not logged, its time, and an id that contains *number* if it has none."""
        message.time = now = self.now()
        message.timestamp = message.timestamp or now
        message.id = message.id or self._ids.make(now, number)
