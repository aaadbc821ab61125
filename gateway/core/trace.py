"""Traces: when each message of a channel was received, logged, on disk, and handed to each connection.

Tracing is switched on for one channel and a minute. The bus then delivers to watched groups in the place of the
channel's own (`Bus.tracers`), so it costs a channel that is not traced nothing. What is kept is bounded: the oldest
traces are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import time_ns
from typing import Any, cast

from .bounded_maps import BoundedMap
from .bus import Bus
from .errors import Throttled
from .flows import Flows
from .listener_groups import Group
from .message import Message, Peer, PendingForm
from .subscriber import Subscriber

SECONDS = 60  # for which a channel is traced
MAX_CHANNELS = 16  # that are traced at a time
MAX_MESSAGES = 256  # whose traces are kept, of all channels together
MAX_DELIVERIES = 256  # of one message that are recorded; the others are counted


@dataclass(slots=True)
class DeliveryTrace:
    """One delivery: when it was queued for a connection of *peer*, and when the wire took it (us; None: not yet)."""

    peer: Peer
    protocol: str
    queued: int
    written: int | None = None


@dataclass(slots=True)
class MessageTrace:
    """The way of one message. Times are microseconds since 1970; `received` is exact to a millisecond."""

    id: str
    seq: int
    channel: str
    sender: Peer
    protocol: str
    received: int
    logged: int
    undelivered: tuple[str, ...]
    synced: int | None = None
    deliveries: list[DeliveryTrace] = field(default_factory=list)
    unlisted: int = 0  # deliveries beyond `MAX_DELIVERIES`


class Tracer:
    """Traces channels of *bus*. *when_synced* calls back once a sequence is on disk; *clock* gives us since 1970."""

    def __init__(
        self,
        bus: Bus,
        when_synced: Callable[[int, Callable[[], None]], None],
        clock: Callable[[], int] = lambda: time_ns() // 1000,
    ) -> None:
        self._bus = bus
        self._when_synced = when_synced
        self._clock = clock
        self._ends: dict[str, int] = {}  # of the channels that are traced
        self._traces = BoundedMap[str, MessageTrace](MAX_MESSAGES)

    def start(self, channel: str) -> int:
        """Trace what is published on *channel* from now on, and return the end (ms since 1970).

        Raises `Throttled` while `MAX_CHANNELS` others are traced.
        """
        self.tick()
        now = self._clock()
        if channel not in self._ends and len(self._ends) >= MAX_CHANNELS:
            raise Throttled((min(self._ends.values()) - now) / 1e6)
        self._ends[channel] = end = now + SECONDS * 1_000_000
        self._bus.tracers[channel] = self._watch
        self._bus.dialect_changed(channel)
        return end // 1000

    def end(self, channel: str) -> int | None:
        """When the tracing of *channel* ends (ms since 1970); None if it is not traced."""
        found = self._ends.get(channel)
        return None if found is None else found // 1000

    def tick(self) -> None:
        """Stop what is due; call this once a second."""
        now = self._clock()
        for channel in [channel for channel, end in self._ends.items() if end <= now]:
            del self._ends[channel], self._bus.tracers[channel]
            self._bus.dialect_changed(channel)

    def traces(self, channel: str) -> list[MessageTrace]:
        """The traces of *channel* that are kept, the oldest first."""
        return [trace for _, trace in self._traces.items() if trace.channel == channel]

    def find(self, id: str) -> MessageTrace | None:
        """The trace of the message with this canonical *id*; None if it was not traced, or is forgotten."""
        return self._traces.get(id)

    # What watched groups call

    def begin(self, run: Sequence[Message]) -> None:
        """Begin the traces of a *run*, which was just logged and is delivered next."""
        now = self._clock()
        for message in run:
            self._traces[message.id] = trace = MessageTrace(
                *(message.id, message.seq, message.channel, message.sender, message.protocol),
                *(message.time * 1000, now, message.undelivered),
            )
            self._when_synced(message.seq, partial(self._synced, trace))

    def record(self, message: Message, sessions: Sequence[Any], pending: PendingForm | None) -> None:
        """Record that *message* was delivered to *sessions*; they get it once the form that is *pending* is made."""
        if (trace := self._traces.get(message.id)) is None:
            return
        now, room = self._clock(), MAX_DELIVERIES - len(trace.deliveries)
        trace.unlisted += max(0, len(sessions) - room)
        for session in sessions[:room]:
            delivery = DeliveryTrace(session.who, session.protocol, now)
            trace.deliveries.append(delivery)
            watch = partial(session.when_written, partial(self._written, delivery))
            if pending is None:
                watch()
            else:
                pending.when_done(watch)

    def _synced(self, trace: MessageTrace) -> None:
        trace.synced = self._clock()

    def _written(self, delivery: DeliveryTrace) -> None:
        delivery.written = self._clock()

    def _watch(self, groups: list[Group]) -> list[Group]:
        """Return *groups* with a record of what they deliver, after one that begins the traces."""
        first = Group(cast(type[Subscriber], _Beginning(self)), [], Flows().to_protocol(""))
        return [first, *(each._replace(kind=cast(type[Subscriber], _TracedKind(self, each.kind))) for each in groups)]


class _Beginning:
    """Stands first among the groups of a traced channel, and has no sessions."""

    protocol = ""
    echo = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def deliver_all(self, run: Sequence[Message], _sessions: Sequence[Subscriber], _origins: Sequence[Any]) -> int:
        self._tracer.begin(run)
        return 0


class _TracedKind:
    """Stands for the class of a group of sessions."""

    def __init__(self, tracer: Tracer, kind: type[Subscriber]) -> None:
        self._tracer = tracer
        self._kind = kind
        self.protocol = kind.protocol
        self.echo = kind.echo

    def deliver_all(self, run: Sequence[Message], sessions: Sequence[Subscriber], origins: Sequence[Any]) -> int:
        before = [set(message.forms) for message in run]
        delivered = self._kind.deliver_all(run, sessions, origins)
        for message, made, origin in zip(run, before, origins, strict=True):
            receivers = [session for session in sessions if session is not origin and session.closing is None]
            if delivered and self.protocol not in message.undelivered:
                self._tracer.record(message, receivers, _unfinished(message, made))
        return delivered


def _unfinished(message: Message, made: set[str]) -> PendingForm | None:
    """The form of *message* that is still being made and was not among those that were *made* before, if any."""
    new = (form for key, form in message.forms.items() if key not in made)
    return next((form for form in new if isinstance(form, PendingForm) and not form.done), None)
