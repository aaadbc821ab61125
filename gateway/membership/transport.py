"""The connection of a gateway to the stream of its cluster, on NATS JetStream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from zlib_ng.zlib_ng import crc32

from gateway.cluster.accepting_turn import Turn
from gateway.cluster.signals import MAX_SIGNAL, TurnRequest, encode_signal
from gateway.cluster.turn_contracts import TurnTransport
from gateway.core.errors import OperatorError

if TYPE_CHECKING:
    from gateway.access.shared_grants import SharedGrants
    from gateway.access.shared_keys import SharedKeys
    from gateway.jetstream.connecting import JetStreamSettings
    from gateway.jetstream.reader import StreamEntry
    from gateway.jetstream.status import JetStreamStatus

TICK_SECONDS: Final = 0.1
ANSWERED_SECONDS: Final = 4.0  # since the last answer of the servers, after which they do not answer
MAX_UNHEARD: Final = 32 << 20  # bytes of signals that wait for the gateway; beyond it they are lost

Call = Callable[[], object]


class CannotJoin(OperatorError):
    """The gateway cannot be a member of the cluster; the text says why, and what to do about it."""


class ClusterTransport(TurnTransport, Protocol):
    """A connection to the stream, which gives the gateway calls to run on its loop."""

    on_call: Callable[[], None]  # called in any thread when there is something to `receive`
    on_signal: Callable[[bytes], None]  # gets each signal of another member, in one of the calls
    is_full: Callable[[], bool]  # returns whether so much waits for the disk that no more is to be read
    place: int  # of what was given to the turn last, in the stream
    digest: int | None  # of that; None if it is not known
    time: tuple[int, float]  # when a server took that (ms since 1970), and when it came here (seconds, monotonic)
    lost: int  # signals that came too fast

    def open(self, turn: Turn, place: int) -> None:
        """Give *turn* all that is in the stream behind *place*."""

    @property
    def caught_up(self) -> bool:
        """Whether the turn was given all that was in the stream when it was opened."""

    def receive(self, seconds: float) -> Call | None:
        """The next call; None if there is none for so many *seconds*. It may raise `CannotJoin`."""

    def tell(self, data: bytes, to: str = "") -> None:
        """Send *data* to all others, or to the member *to*; it may be lost."""

    def status(self) -> JetStreamStatus:
        """The state of the connection and of the stream."""

    @property
    def refused(self) -> int:
        """How many values that members share could not be read."""

    def close(self) -> None:
        """End the connection."""


class JetStreamTransport:
    """The stream that *settings* name; see `ClusterTransport`."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self.on_call: Callable[[], None] = lambda: None
        self.on_signal: Callable[[bytes], None] = lambda _data: None
        self.is_full: Callable[[], bool] = lambda: False
        self._untaken = False  # whether something was taken while it was full, so that no more is read
        self.place = 0
        self.digest: int | None = None
        self.time = (0, 0.0)
        self.lost = 0  # signals that came too fast
        self.shared: dict[str, SharedKeys | SharedGrants] = {}  # by the names of values
        self._unheard = 0  # bytes
        self._received = self._taken = 0  # entries; each is counted in one thread only
        self._known: set[str] = set()  # values that were received
        self._settings = settings
        self._calls = SimpleQueue[Call]()

    def open(self, turn: Turn, place: int) -> None:
        """Read what follows *place*, and give it to *turn*."""
        from gateway.jetstream.stream import JetStream  # nats-py is an extra

        self._turn, self.place = turn, place
        values = {name: partial(self._came_value, name) for name in self.shared}
        self._stream = JetStream(self._settings, self._came, self._failed, self._heard, turn.me, values)
        self._stream.start(place, self.digest)
        self._tick()

    @property
    def caught_up(self) -> bool:
        """Whether the turn was given all that was in the stream when it was opened, and shared values are known."""
        return self._known == self.shared.keys() and self._stream.end is not None and self.place >= self._stream.end

    @property
    def refused(self) -> int:
        """How many values that members share could not be read."""
        return sum(each.refused for each in self.shared.values())

    def status(self) -> JetStreamStatus:
        """How the stream is doing."""
        return self._stream.status()

    def receive(self, seconds: float) -> Call | None:
        """The next call; None if there is none for so many *seconds*."""
        try:
            return self._calls.get(timeout=seconds) if seconds else self._calls.get_nowait()
        except Empty:
            return None

    def publish(self, data: bytes) -> None:
        """Append *data* to the stream."""
        self._stream.submit(data)

    def want(self, member: str, batches: int) -> None:
        """Tell all others that *member* wants the turn, after so many *batches*."""
        self.tell(encode_signal(TurnRequest(member, batches)))

    def tell(self, data: bytes, to: str = "") -> None:
        """Send *data* to all others, or to the member *to*."""
        self._stream.tell(data, to)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Have the gateway run *call* after *seconds*."""
        if seconds:
            self._stream.later(seconds, partial(self._put, call))
        else:
            self._put(call)

    def answers(self) -> bool:
        """Whether the servers answered lately, who are asked every two seconds."""
        status = self._stream.status()
        return status.connected and status.silence < ANSWERED_SECONDS

    def put_value(self, name: str, data: bytes, version: int) -> None:
        """Replace the shared value *name* of *version*."""
        self._stream.put_value(name, data, version)

    def close(self) -> None:
        """End the connection."""
        self._stream.stop()

    # In the stream's thread

    def _put(self, call: Call) -> None:
        self._calls.put(call)
        self.on_call()

    def _came(self, entries: list[StreamEntry]) -> None:
        self._received += len(entries)
        for entry in entries:
            self._calls.put(partial(self._take, entry))  # one by one, so that the loop can do something in between
        self.on_call()

    def _heard(self, data: bytes) -> None:
        if len(data) > MAX_SIGNAL or self._unheard + len(data) > MAX_UNHEARD:
            self.lost += 1
            return
        self._unheard += len(data)
        self._put(partial(self._hear, data))

    def _came_value(self, name: str, version: int, data: bytes) -> None:
        self._put(partial(self._take_value, name, version, data))

    def _failed(self, reason: str) -> None:
        self._put(partial(_raise, CannotJoin(f"the stream of the cluster cannot be used: {reason}")))

    def _tick(self) -> None:
        self._put(self._on_tick)
        self._stream.later(TICK_SECONDS, self._tick)

    # On the gateway's loop

    def _take_value(self, name: str, version: int, data: bytes) -> None:
        self._known.add(name)
        self.shared[name].receive(version, data)

    def _hear(self, data: bytes) -> None:
        self._unheard -= len(data)
        self.on_signal(data)

    def _take(self, entry: StreamEntry) -> None:
        self._taken += 1
        self.place, self.digest = entry.position, crc32(entry.data)
        self.time = entry.time, monotonic()
        self._turn.arrived(entry.data, has_more=self._received > self._taken)
        self._read_more()

    def _read_more(self) -> None:
        """Let more be read, unless too much waits for the disk; `_on_tick` looks again."""
        self._untaken = self.is_full()
        if not self._untaken:
            self._stream.acknowledge_read(self.place)

    def _on_tick(self) -> None:
        self._turn.tick()
        if self._untaken:
            self._read_more()


def _raise(error: Exception) -> None:
    raise error
