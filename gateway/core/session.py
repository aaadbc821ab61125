"""The contract of a connected peer: an object that is fed data and drained of data, and never waits.

What a shell must do, and nothing else:
1. Call `receive_data` with what arrived, however it was cut (a WebSocket: one call for each whole message).
2. Call `data_to_send` (or first `all_to_send`) whenever `wake` was called or the wire can take more, and write what it
   returns, in order. Each element is whole: one frame of a WebSocket; one message of a line protocol, or a part of a
   long one, whose other parts come next.
3. Read from the wire only while `readable`; look again after every `data_to_send`. Where the bus has an `inflow`, tell
   it what was read, and wait as long as it says.
4. When `closing` is set: write what `data_to_send` still returns, then close with that code and reason. When the peer
   has said that it sends nothing more, do the same once nothing is `unfinished`.
5. Set `blocked` while the wire takes nothing more: only who does not read can be too slow.
6. Call `receive_eof` exactly once at the end, whatever the end was. (`tick` is the bus's to call, once a second.)

What the core promises in return: no call raises, whatever the bytes; `wake` is called when there is something to
write again (or to close); nothing is written from another thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from .errors import Forbidden, ProtocolError, RequestError, Throttled
from .message import Form, Message, Peer, Pending

if TYPE_CHECKING:
    from .bus import Bus
    from .flows import Flow
    from .inflow import Conduct

MAX_OUTBOX = 1 << 20  # deliveries waiting for a peer that reads too slowly; beyond it the peer is closed
LOW_WATER = 1 << 16  # replies waiting; beyond it no further request is parsed, below it streams are pulled
BURST = 4  # times its outbox that a peer may be given before its shell had a chance to write
MAX_STREAMS = 16  # long answers under way on one connection; beyond it no further request is parsed


class Principal(NamedTuple):
    """Who stands behind a connection, as far as the gateway can tell: a name that grants refer to.

    Who came with an API key has the rights of that *key* (its id) and no others, whatever else has its name.
    """

    name: str
    address: str = ""  # where from, for rate limits
    key: str = ""


class Close(NamedTuple):
    """Why a connection ends; *code* as in RFC 6455, section 7.4 (a plain TCP wire has no use for it)."""

    code: int
    reason: str


class Batch:
    """What was said lately for the same listeners, on its way to their outboxes.

    A burst of messages then costs each listener little more than one: its outbox is touched once. Listeners were
    woken when the batch began. Whoever looks at an outbox, or queues something else, calls `spill` first.
    """

    __slots__ = ("_listeners", "_origin", "_size", "frames")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._listeners: Sequence[Session] = ()
        self._origin: Session | None = None
        self._size = 0

    def add(self, frames: Sequence[bytes], listeners: Sequence[Session], origin: Session | None) -> None:
        """Queue *frames* for all *listeners* but *origin*; the sequence of listeners never changes."""
        if listeners is not self._listeners or origin is not self._origin or self._size > LOW_WATER:
            self.spill()
            self._listeners, self._origin = listeners, origin
        if not self.frames:
            for session in listeners:
                if not session._queue and session is not origin:
                    session.wake()
        self.frames += frames
        self._size += sum(map(len, frames))

    def spill(self) -> None:
        """Put everything into the outboxes."""
        frames, size, self.frames, self._size = self.frames, self._size, [], 0
        if not frames:
            return
        overfull = list[Session]()  # closed when everybody has the frames: their adapters' code runs then
        origin = self._origin
        for session in self._listeners:
            if session is origin or session.closing is not None:
                continue
            session._queue += frames
            session._size = waiting = session._size + size
            if waiting > session.max_outbox:
                overfull.append(session)
        for session in overfull:
            session._overfull()


class Session(ABC):
    """One connected peer. Subclasses read requests in `handle` and write with `send`, `put` and `stream`."""

    protocol: ClassVar[str]
    text: ClassVar[bool] = False  # WebSocket text messages; data is UTF-8 bytes all the same
    echo: ClassVar[bool] = False  # whether a publisher that listens hears itself
    max_outbox: int = MAX_OUTBOX

    def __init__(self, bus: Bus, principal: Principal) -> None:
        self.bus = bus
        self.principal = principal
        self.wake: Callable[[], None] = _nothing
        self.closing: Close | None = None
        self.blocked = True  # the wire takes nothing now; a shell that writes says otherwise
        self.conduct: Conduct | None = None  # what `gateway.core.inflow` holds against it
        self.channels: dict[str, None] = {}
        self.identity: Peer | None = None
        self.link = False
        self._batch = bus.batch
        self._sample: Callable[[], None] | None = None  # ends the measuring of a delivery that is on its way out
        self._queue: list[Form] = []
        self._size = 0
        self._held = 0  # forms in the queue that are still being made
        self._streams: deque[Iterator[Form]] = deque()
        self._backlog: deque[bytes] = deque()
        self.peer = bus.join(self)

    # What adapters write

    @abstractmethod
    def handle(self, data: bytes) -> None:
        """Act on what arrived. Raise `ProtocolError`, after queueing the farewell, only when framing is lost."""

    @abstractmethod
    def deliver(self, message: Message) -> None:
        """Queue *message* for the peer. Never calls the bus."""

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origin: Session | None) -> int:
        """Deliver a *run* to all *sessions* (of this class, of one dialect) but *origin*; how many deliveries."""
        receivers = [session for session in sessions if session is not origin]
        for message in run:
            for session in receivers:
                session.deliver(message)
        return len(receivers) * len(run)

    def dialect(self, channel: str) -> str:  # noqa: ARG002  # most protocols have one
        """What tells apart the sessions of one class that are sent different forms of what is said on *channel*.

        `deliver_all` gets those of one dialect; `Bus.regroup` has to be told when this becomes another.
        """
        return ""

    def fits(self, message: Message) -> bool:  # noqa: ARG002  # most protocols have room for most messages
        """Whether this protocol has room for a direct *message*."""
        return True

    def greet(self, channel: str, peer: Peer) -> None:
        """Tell the peer that another joined *channel*; most protocols do not. Never calls the bus."""

    def farewell(self, channel: str, peer: Peer) -> None:
        """Tell the peer that another left *channel*; most protocols do not. Never calls the bus."""

    def tick(self, now: int) -> None:
        """A second has passed; *now* is the bus's clock in ms."""

    def listens_as(self, channel: str) -> Principal:  # noqa: ARG002  # mostly one for all
        """By whose right this connection listens to *channel*."""
        return self.principal

    def may_go_on(self) -> bool:
        """Whether what was allowed once, and goes on beside its channels, is allowed still."""
        return True

    def goodbye(self) -> None:
        """The gateway stops: queue what the protocol has to say about that and close."""
        self.close(1001, "the gateway is stopping")

    # What shells call

    @property
    def readable(self) -> bool:
        """Whether the shell should read more from the wire; `wake` is called once a False may have become True."""
        if self._backlog or self.saturated:
            self.bus.await_room(self)  # does nothing unless it is the disk that is waited for
            return False
        return True

    @property
    def ready(self) -> bool:
        """Whether what arrives now is handled now."""
        return self.closing is None and not self._backlog and not self.saturated

    @property
    def saturated(self) -> bool:
        """Whether the next request has to wait until the peer, or a slow disk, has caught up.

        Where the disk fails nobody waits for it: requests are handled, and those that need it are refused.
        """
        if self._size >= LOW_WATER or len(self._streams) >= MAX_STREAMS:
            return True
        ledger = self.bus.ledger
        return ledger.congested and ledger.failing is None

    def receive_data(self, data: bytes) -> None:
        """Take what the peer sent; it is kept for later while the outbox is full."""
        if self.closing is not None:
            return
        if self._backlog or self.saturated:
            self._backlog.append(data)
            self.bus.await_room(self)
        else:
            self._handle(data)

    def receive_all(self, messages: Sequence[bytes]) -> None:
        """Take what the peer sent at once, on a wire that has messages."""
        for message in messages:
            self.receive_data(message)

    def receive_eof(self) -> None:
        """The connection is over, for whatever reason."""
        self.bus.leave(self)
        self.wake = _nothing
        self._release()
        self._backlog.clear()

    def data_to_send(self) -> list[bytes]:
        """Everything that can be written now, in order; long answers come a piece at a time."""
        self._settle()
        if self._held or self._streams:
            data = self._take()
        else:
            data, self._queue, self._size = self._queue, [], 0  # type: ignore[assignment]  # no Pending among them
        if self._sample is not None and not self._queue:
            self._measured()
        if self._backlog:
            self.resume()
        return data

    def all_to_send(self) -> bytes | None:
        """Everything as one piece, where that leaves nothing else to do; else None: ask `data_to_send` and the rest."""
        if self._batch.frames:  # as `_settle` does: spares a call for each flush
            self._batch.spill()
        if self._held or self._streams or self._backlog or self.closing is not None or not self._queue:
            return None
        data, self._queue, self._size = self._queue, [], 0
        if self._sample is not None:
            self._measured()
        return b"".join(data)  # type: ignore[arg-type]  # no Pending among them

    @property
    def waiting(self) -> int:
        """How many frames are queued."""
        self._settle()
        return len(self._queue)

    @property
    def has_more(self) -> bool:
        """Whether another `data_to_send` would return something right away."""
        self._settle()
        head = self._queue[0] if self._queue else None
        return (head is not None and (not isinstance(head, Pending) or head.done)) or (
            bool(self._streams) and not self._held
        )

    @property
    def unfinished(self) -> bool:
        """Whether something that was asked for is still being made, and has its place before what comes later."""
        return self._held > 0

    def resume(self) -> None:
        """Handle what had to wait, as far as there is room now."""
        while self._backlog and not self.saturated and self.closing is None:
            self._handle(self._backlog.popleft())
        if self._backlog:
            self.bus.await_room(self)

    # What adapters call

    @property
    def who(self) -> Peer:
        """The peer as others see it: its identity once it is bound to one, else its connection."""
        return self.identity or self.peer

    def check(self, verb: str, channel: str) -> None:
        """Raise `Forbidden` or `Throttled` unless this peer may *verb* on *channel* now."""
        if not self.bus.allowed(self.principal, verb, channel):
            raise Forbidden(verb, channel)
        self.pace(channel)

    def pace(self, channel: str) -> None:
        """Raise `Throttled` where this peer asks too often; *channel* is what it asks about."""
        if self.bus.throttle is None:  # spares a call where there are no limits
            return
        try:
            self.bus.pace(self.principal, self.who, channel)
        except Throttled:
            if self.bus.inflow is not None:
                self.bus.inflow.refused(self)
            raise

    def offend(self) -> None:
        """Count input that the protocol has no place for; a peer that goes on with it is slowed, then closed."""
        if self.bus.inflow is not None:
            self.bus.inflow.malformed(self)

    def send(self, data: bytes) -> None:
        """Queue a whole frame."""
        self._settle()
        if not self._queue:
            self.wake()
        self._queue.append(data)
        self._size += len(data)

    def put(self, form: Form) -> None:
        """Queue a delivery, finished or not; a peer that is too slow for its deliveries is closed."""
        self._settle()
        if self.closing is not None:
            return
        if isinstance(form, Pending):
            if not form.done or form.size > len(form.data or b""):
                self._hold(form)
                return
            if form.data is None:
                return
            form = form.data
        if not self._queue:  # as `send` does; the call would cost a quarter of the delivery
            self.wake()
        self._queue.append(form)
        self._size += len(form)
        if self._size > self.max_outbox:
            self._overfull()

    @staticmethod
    def put_all(forms: Sequence[bytes], sessions: Sequence[Session], origin: Session | None) -> int:
        """`put` the finished *forms* for all *sessions*, which there are, but *origin*; how many deliveries that is."""
        sessions[0]._batch.add(forms, sessions, origin)
        return len(forms) * (len(sessions) - (origin in sessions if origin is not None else 0))

    def sample(self, flow: Flow) -> None:
        """Measure how long a delivery of *flow*, which was just queued, takes until all of the queue is written."""
        if self._sample is None:
            self._sample = flow.sample()

    def stream(self, forms: Iterator[Form]) -> None:
        """Send *forms* as fast as the peer reads them, and no faster: they are pulled, never stored."""
        self._streams.append(forms)
        self.wake()

    def _overfull(self) -> None:
        """More than the outbox's share waits: too slow is who does not read, not who was told much at once."""
        if self.blocked or self._size > BURST * self.max_outbox:
            self.overflow()

    @property
    def network(self) -> str:
        """Where the peer is, as limits count it; empty for a link."""
        return self.principal.address

    @property
    def holding(self) -> int:
        """How many bytes are kept for the peer; protocols that keep more than is here add theirs."""
        return self._size + sum(map(len, self._backlog))

    def give_up(self) -> None:
        """Let go of all that is kept for the peer, and of the peer: the gateway is short of memory."""
        self._release()
        self.close(1013, "the gateway is short of memory, and this connection held most of it")

    def overflow(self) -> None:
        """Give up on a peer that does not read what it asked for."""
        self._settle()
        if self.closing is not None:
            return
        self._release()
        self.bus.metrics.overflow(self.protocol)
        self.close(1013, "too slow: more than its share is waiting to be read")

    def _release(self) -> None:
        """Drop what waits for the peer."""
        self._settle()
        self._queue, self._size, self._held = [], 0, 0
        self._streams.clear()

    def close(self, code: int, reason: str) -> None:
        """End the connection once everything queued so far is written."""
        self._settle()
        if self.closing is None:
            self.closing = Close(code, reason)
            self._backlog.clear()
            self.wake()

    def _measured(self) -> None:
        assert self._sample is not None
        self._sample()
        self._sample = None

    def _settle(self) -> None:
        if self._batch.frames:
            self._batch.spill()

    def _handle(self, data: bytes) -> None:
        try:
            self.handle(data)
        except ProtocolError as error:
            self.close(1002, str(error))

    def _hold(self, form: Pending) -> None:
        """Keep the place of a form that is still being made."""
        self._held += 1
        self._queue.append(form)
        form.when_done(partial(self._filled, form))

    def _filled(self, form: Pending) -> None:
        if not self._held:
            return  # the outbox was given up meanwhile
        self._size += form.size
        if form.data and self._size > self.max_outbox:
            self.overflow()
        else:
            self._look()

    def _look(self) -> None:
        """Wake the shell where what is first in the queue is there."""
        if self._queue and isinstance(head := self._queue[0], Pending) and head.done:
            self.wake()

    def _take(self) -> list[bytes]:
        """The ready head of the queue, then what the streams give until `LOW_WATER` bytes are out."""
        data: list[bytes] = []
        size = 0
        while True:
            for taken, form in enumerate(self._queue):
                if isinstance(form, Pending):
                    if not form.done:
                        del self._queue[:taken]
                        return data
                    if form.data is not None:
                        self._size -= len(form.data)
                        size += len(form.data)
                        data.append(form.data)
                    if form.goes_on():
                        del self._queue[:taken]
                        form.when_done(self._look)
                        return data
                    self._held -= 1
                else:
                    self._size -= len(form)
                    size += len(form)
                    data.append(form)
            self._queue.clear()
            if size >= LOW_WATER or not self._pull():
                return data

    def _pull(self) -> bool:
        """Move the next form of the first stream into the queue; False when there is none."""
        while self._streams:
            try:
                form = next(self._streams[0], None)
            except RequestError as error:  # the index cannot be read: half an answer must not look whole
                self._streams.clear()
                self.close(1011, str(error))
                return False
            if form is None:
                self._streams.popleft()
            elif isinstance(form, Pending) and not form.done:
                self._hold(form)
                return True
            elif (data := form.data if isinstance(form, Pending) else form) is not None:
                self._queue.append(data)
                self._size += len(data)
                return True
        return False


def _nothing() -> None:
    pass
