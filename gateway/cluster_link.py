"""The connection of a gateway to the stream of its cluster, on NATS JetStream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from .membership import TICK, Call, CannotJoin, Membership

if TYPE_CHECKING:
    from gateway.cluster.turn import Turn
    from gateway.jetstream.reader import StreamEntry
    from gateway.jetstream.stream import JetStreamSettings

    from .runtime import Gateway

MAX_WANTED: Final = 128  # bytes of the name of a member


class JetStreamLink:
    """The stream that *settings* name; see `gateway.membership.StreamLink`."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self.on_call: Callable[[], None] = lambda: None
        self.place = 0
        self._settings = settings
        self._calls = SimpleQueue[Call]()

    def open(self, turn: Turn, place: int) -> None:
        """Read what follows *place*, and give it to *turn*."""
        from gateway.jetstream.stream import JetStream  # nats-py is an extra

        self._turn, self.place = turn, place
        self._stream = JetStream(self._settings, self._came, self._failed, self._heard)
        self._stream.start(place)
        self._tick()

    @property
    def caught_up(self) -> bool:
        """Whether the turn was given all that was in the stream when it was opened."""
        return self._stream.end is not None and self.place >= self._stream.end

    @property
    def trouble(self) -> str:
        """Why the stream does not answer; empty if it does."""
        return self._stream.status().error

    def receive(self, seconds: float) -> Call | None:
        """The next call; None if there is none for so many *seconds*."""
        try:
            return self._calls.get(timeout=seconds) if seconds else self._calls.get_nowait()
        except Empty:
            return None

    def publish(self, data: bytes) -> None:
        """Append *data* to the stream."""
        self._stream.submit(data)

    def want(self, member: str) -> None:
        """Tell all others that *member* wants the turn."""
        self._stream.tell(member.encode())

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have the gateway run *call* after *seconds*."""
        if seconds:
            self._stream.later(seconds, partial(self._put, call))
        else:
            self._put(call)

    def close(self) -> None:
        """End the connection."""
        self._stream.stop()

    # In the stream's thread

    def _put(self, call: Call) -> None:
        self._calls.put(call)
        self.on_call()

    def _came(self, entries: list[StreamEntry]) -> None:
        self._put(partial(self._take, entries))

    def _heard(self, data: bytes) -> None:
        if len(data) <= MAX_WANTED:
            self._put(partial(self._turn.wanted, data.decode("ascii", "replace")))

    def _failed(self, reason: str) -> None:
        self._put(partial(_raise, CannotJoin(f"the stream of the cluster cannot be used: {reason}")))

    def _tick(self) -> None:
        self._put(self._turn.tick)
        self._stream.later(TICK, self._tick)

    # On the gateway's loop

    def _take(self, entries: list[StreamEntry]) -> None:
        for entry in entries:
            self.place = entry.position
            self._turn.arrived(entry.data)
        self._stream.took(self.place)


def _raise(error: Exception) -> None:
    raise error


def membership_of(gateway: Gateway) -> Membership | None:
    """The part of *gateway* in its cluster; None if it runs alone."""
    cluster, home = gateway.settings.cluster, gateway.home
    if not cluster.url:
        return None
    from gateway.jetstream.stream import JetStreamSettings  # nats-py is an extra

    keys = blake2b(b"cluster", key=home.secret, digest_size=8).hexdigest()
    protocols = "+".join(sorted(adapter.name for adapter in gateway.adapters))
    about = f"gateway {home.gateway_id}, keys {keys}, protocols {protocols}"
    settings = JetStreamSettings(
        cluster.name, cluster.url, cluster.replicas, cluster.authorities, cluster.credentials, about
    )
    return Membership(cluster.gateway, JetStreamLink(settings), lease=cluster.lease_seconds)
