"""Delivers messages to all listeners of a channel in order: at once if the line is signed, else when it is.

A line that is not signed yet delays later messages in the same channel, and nothing else: no connection reserves a
place for it. The queue of each channel is bounded by its messages, and all of them by their bytes: beyond that, the
listeners of the channel with most bytes are disconnected.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from gateway.core.member import Member
from gateway.core.message import Form, Message, PendingForm
from gateway.core.session import Session

MAX_UNSIGNED: Final = 8192  # queued messages of one channel; a signature takes half a millisecond
MAX_BYTES: Final = 32 << 20  # of queued messages, in all channels, with the memory that each takes
_EACH: Final = 2048  # bytes that a queued message takes besides its content


class _Queued(NamedTuple):
    """A queued message, and its recipients."""

    line: Form
    sessions: Sequence[Session]
    origin: Member | None
    size: int


class OrderedDelivery:
    """Delivers messages in the order of their channel; *said* gives the line of a message."""

    def __init__(self, said: Callable[[Message], Form]) -> None:
        self._line_of = said
        self._queues: dict[str, deque[_Queued]] = {}
        self._sizes: Counter[str] = Counter()  # bytes, by channel
        self.size = 0

    def deliver(self, run: Sequence[Message], sessions: Sequence[Session], origins: Sequence[Member | None]) -> int:
        """Announce a *run* in one channel to all *sessions*, each message except to its origin; return how often."""
        lines = [self._line_of(message) for message in run]
        signed = [line for line in lines if line and isinstance(line, bytes)]
        if len(signed) == len(run) and run[0].channel not in self._queues:
            return Session.fan_out(signed, sessions, origins)
        return sum(
            self._deliver(message, line, sessions, origin)
            for message, line, origin in zip(run, lines, origins, strict=True)
        )

    def _deliver(self, message: Message, line: Form, sessions: Sequence[Session], origin: Member | None) -> int:
        unmade = self._queues.get(message.channel)
        if isinstance(line, PendingForm) and line.done:
            line = line.data or b""
        if unmade is None and not isinstance(line, PendingForm):
            return Session.fan_out((line,), sessions, (origin,)) if line else 0
        if unmade is None:
            unmade = self._queues[message.channel] = deque()
        size = len(message.content) + _EACH
        unmade.append(_Queued(line, sessions, origin, size))
        self._grow(message.channel, size)
        if len(unmade) > MAX_UNSIGNED:
            self._drop_channel(message.channel)
        elif self.size > MAX_BYTES:
            self._drop_channel(max(self._sizes, key=self._sizes.__getitem__))
        if isinstance(line, PendingForm):
            line.when_done(partial(self._line_ready, message.channel))
        return len(sessions) - (origin in sessions)

    def _line_ready(self, channel: str) -> None:
        """Deliver the first messages in the queue whose lines are signed; skip those that failed."""
        unmade = self._queues.get(channel)
        while unmade:
            line, sessions, origin, size = unmade[0]
            if isinstance(line, PendingForm):
                if not line.done:
                    return
                line = line.data or b""
            unmade.popleft()
            self._grow(channel, -size)
            if line and (here := [each for each in sessions if channel in each.channels]):
                Session.fan_out((line,), here, (origin,))
        self._queues.pop(channel, None)
        self._sizes.pop(channel, None)

    def _grow(self, channel: str, size: int) -> None:
        self._sizes[channel] += size
        self.size += size

    def _drop_channel(self, channel: str) -> None:
        """Drop the queue of *channel*, and disconnect its listeners: they miss messages, and must notice."""
        self.size -= self._sizes.pop(channel)
        for session in {each: None for unmade in self._queues.pop(channel) for each in unmade.sessions}:
            session.overflow()
