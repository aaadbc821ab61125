"""Assigns sequence numbers, times and ids to messages; a clock that never goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .message import Message, MessageIds


class LogClock:
    """The time of what is logged: that of *clock* (ms since 1970), but it never goes back, nor below *last_time*.

    Messages and facts share one clock, so the id of a message has the time of its record, before and after a restart.
    """

    def __init__(self, clock: Callable[[], int], last_time: int) -> None:
        self._clock = clock
        self._time = last_time

    def now(self) -> int:
        """The time in ms, never less than it was."""
        self._time = now = max(self._time, self._clock())
        return now

    def reach(self, time: int) -> None:
        """Never be less than *time* (ms), at which another gateway logged something."""
        self._time = max(self._time, time)


class Stamper:
    """Assigns seq, time and id to messages; *log_time* gives the time of what is logged (ms), see `LogClock`."""

    def __init__(self, ids: MessageIds, log_time: Callable[[], int]) -> None:
        self._ids = ids
        self._log_time = log_time

    def stamp(self, run: Sequence[Message], seq: int) -> None:
        """Give the messages of a *run* their seqs from *seq* on, the time of the log, ids and timestamps.

        A message keeps the id or timestamp that it has; but if it was stamped before and not logged, it gets another
        id.
        """
        now = self._log_time()
        head = self._ids.head(now)
        for message in run:
            message.seq, message.time = seq, now
            if not message.timestamp:
                message.timestamp = now
            if message.id_has_seq or not message.id:
                # as in `MessageIds.make`, which would be a call for each message
                message.id, message.id_has_seq = head + seq.to_bytes(6).hex(), True
            seq += 1

    def made(self, id: str) -> bool:
        """Whether *id* is one of this gateway."""
        return self._ids.seq(id) is not None

    def stamp_direct(self, message: Message, number: int) -> None:
        """Give *message*, which is not logged, the time of the log, and an id with *number* in it if it has none."""
        message.time = now = self._log_time()
        message.timestamp = message.timestamp or now
        message.id = message.id or self._ids.make(now, number)
