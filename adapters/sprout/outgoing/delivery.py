"""Delivers messages to all listeners of a channel in order: at once if the line is signed, else when it is.

A line that is not signed yet delays later messages in the same channel, and nothing else: no connection reserves a
place for it. While more of a channel is being signed, signed lines wait for it, up to `MAX_GROUP` lines and `MAX_WAIT`
seconds, and leave together: each announce costs a write to every listener, and each listener answers it.

The queue of each channel is bounded by its messages, and all of them by their bytes: beyond that, the listeners of the
channel with most bytes are disconnected.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Final, NamedTuple

from gateway.core.message import Form, Message, PendingForm
from gateway.core.session import Session
from gateway.core.subscriber import Subscriber

MAX_UNSIGNED: Final = 8192  # queued messages of one channel; a signature takes half a millisecond
MAX_BYTES: Final = 32 << 20  # of queued messages, in all channels, with the memory that each takes
MAX_GROUP: Final = 32  # signed lines that wait for more of their channel to be signed
MAX_WAIT: Final = 0.01  # seconds that they wait, looked at when a line is signed and once a second
_EACH: Final = 2048  # bytes that a queued message takes besides its content


class _Queued(NamedTuple):
    """A queued message, and its recipients."""

    line: Form
    sessions: Sequence[Session]
    origin: Subscriber | None
    size: int


class _Queue:
    """The queue of a channel."""

    __slots__ = ("messages", "signed_since", "unsigned")

    def __init__(self) -> None:
        self.messages: deque[_Queued] = deque()
        self.unsigned = 0
        self.signed_since: float | None = None  # when the first line was signed that may wait

    def gathers(self, now: float) -> bool:
        """Whether signed lines go on waiting for others."""
        if self.signed_since is None:
            self.signed_since = now
        signed = len(self.messages) - self.unsigned
        return self.unsigned > 0 and signed < MAX_GROUP and now - self.signed_since < MAX_WAIT

    def take_signed(self) -> list[tuple[bytes, _Queued]]:
        """Remove the messages before the first whose line is not signed; the line of one that failed is empty."""
        taken: list[tuple[bytes, _Queued]] = []
        self.signed_since = None
        while self.messages:
            line = self.messages[0].line
            if isinstance(line, PendingForm):
                if not line.done:
                    break
                line = line.data or b""
            taken.append((line, self.messages.popleft()))
        return taken


class OrderedDelivery:
    """Delivers messages in the order of their channel; *line_of* gives the line of a message.

    *clock* gives seconds, and never goes back.
    """

    def __init__(self, line_of: Callable[[Message], Form], clock: Callable[[], float] = monotonic) -> None:
        self._line_of = line_of
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._sizes: Counter[str] = Counter()  # bytes, by channel
        self.size = 0

    def deliver(self, run: Sequence[Message], sessions: Sequence[Session], origins: Sequence[Subscriber | None]) -> int:
        """Announce a *run* in one channel to all *sessions*, each message except to its origin; return how often."""
        lines = [self._line_of(message) for message in run]
        signed = [line for line in lines if line and isinstance(line, bytes)]
        if len(signed) == len(run) and run[0].channel not in self._queues:
            return Session.fan_out(signed, sessions, origins)
        return sum(
            self._deliver(message, line, sessions, origin)
            for message, line, origin in zip(run, lines, origins, strict=True)
        )

    def tick(self) -> None:
        """Deliver every message that is signed, without waiting for more; called once a second."""
        for channel in list(self._queues):
            self.settle(channel)

    def settle(self, channel: str) -> None:
        """Deliver what is signed of *channel*, before somebody joins or leaves it."""
        if (queue := self._queues.get(channel)) is not None:
            self._release(channel, queue)

    def _deliver(self, message: Message, line: Form, sessions: Sequence[Session], origin: Subscriber | None) -> int:
        queue = self._queues.get(message.channel)
        if isinstance(line, PendingForm) and line.done:
            line = line.data or b""
        if queue is None and not isinstance(line, PendingForm):
            return Session.fan_out((line,), sessions, (origin,)) if line else 0
        if queue is None:
            queue = self._queues[message.channel] = _Queue()
        size = len(message.content) + _EACH
        queue.messages.append(_Queued(line, sessions, origin, size))
        queue.unsigned += isinstance(line, PendingForm)
        self._grow(message.channel, size)
        if len(queue.messages) > MAX_UNSIGNED:
            self._drop_channel(message.channel)
        elif self.size > MAX_BYTES:
            self._drop_channel(max(self._sizes, key=self._sizes.__getitem__))
        if isinstance(line, PendingForm):
            line.when_done(partial(self._line_ready, message.channel, queue))
        return len(sessions) - (origin in sessions)

    def _line_ready(self, channel: str, queue: _Queue) -> None:
        queue.unsigned -= 1
        if not queue.gathers(self._clock()):
            self._release(channel, queue)

    def _release(self, channel: str, queue: _Queue) -> None:
        """Deliver the first messages in *queue* whose lines are signed, unless it was dropped."""
        if self._queues.get(channel) is not queue:
            return
        taken = queue.take_signed()
        self._grow(channel, -sum(each.size for _, each in taken))
        if not queue.messages:
            del self._queues[channel], self._sizes[channel]
        deliverable = [(line, each) for line, each in taken if line]
        for _, group in groupby(deliverable, lambda pair: id(pair[1].sessions)):
            lines, messages = zip(*group, strict=True)
            here = [session for session in messages[0].sessions if channel in session.channels]
            Session.fan_out(lines, here, [each.origin for each in messages])

    def _grow(self, channel: str, size: int) -> None:
        self._sizes[channel] += size
        self.size += size

    def _drop_channel(self, channel: str) -> None:
        """Drop the queue of *channel*, and disconnect its listeners: they miss messages, and must notice."""
        self.size -= self._sizes.pop(channel)
        for session in {each: None for queued in self._queues.pop(channel).messages for each in queued.sessions}:
            session.overflow()
