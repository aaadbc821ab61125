"""The fast shell: sessions directly on asyncio transports, for TCP and for WebSockets after the handshake.

What arrives is handed to the session in the very call that reports it. What is to be written waits until the
end of the loop's turn and leaves in one write for each connection. There is no task, no queue and no timer
for a peer; a connection that ends has one, for `LINGER` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import MutableSet
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

from anyio.abc import TaskGroup

from gateway.core.outbox import Close
from gateway.core.session import Session
from gateway.core.watchdog import Progress

from .serve import BACKLOG, HANDSHAKE_SECONDS, LINGER, STALLED_SECONDS, Accept, Door, keep_alive
from .tls import TlsServer
from .turns import CHEAP, FIRST, Portion, turns_of
from .websocket import CLOSE, PING, PONG, TEXT, Reader, close_frame, control_frame

MAX_TURNS = 64  # of the loop that a flush waits while more is coming in
MAX_WAIT = 0.005  # seconds that it waits for that: a turn may take long, and somebody else's input brings it on
SAMPLE = 4  # connections that tell whether several messages are waiting

logger = logging.getLogger(__name__)


class Flusher:
    """Flushes all connections that were woken, by one callback: at the end of the loop's turn, or a few turns later.

    While messages come so fast that several are waiting for the same peer, the flush waits as long as each turn of
    the loop still brings something in, at most `MAX_TURNS` and `MAX_WAIT`: then more messages leave in one write, which
    is what most of the time goes into. As soon as that gathers nothing, flushes are immediate again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.arrivals = 0  # reads that brought something
        self._loop = loop
        self._woken: dict[Connection, None] = {}
        self._crowded = False
        self._turns = 0  # that the next flush may still wait
        self._seen = 0  # arrivals when it was put off
        self._until = 0.0  # (`perf_counter`) which it is put off at most
        self._flushes = 0

    @property
    def progress(self) -> Progress:
        """What waits, and what was done."""
        return Progress(len(self._woken), self._flushes)

    def add(self, connection: Connection) -> None:
        """Flush *connection* soon, once."""
        if not self._woken:
            self._turns = MAX_TURNS if self._crowded else 0
            self._seen = self.arrivals - 1
            self._until = perf_counter() + MAX_WAIT if self._crowded else 0.0
            self._loop.call_soon(self._flush)
        self._woken[connection] = None

    def _flush(self) -> None:
        if self._turns and self._seen != self.arrivals and perf_counter() < self._until:
            self._turns -= 1
            self._seen = self.arrivals
            self._loop.call_soon(self._flush)
            return
        self._flushes += 1
        woken, self._woken = self._woken, {}  # first: looking at a connection may wake others, which come next
        self._crowded = False
        for place, connection in enumerate(woken):
            try:
                if place < SAMPLE and connection.waiting > 1:
                    self._crowded = True
                connection.flush()
            except Exception:  # a bug in one session must not stop the others
                logger.exception("a connection failed; the others go on")
                connection.transport.abort()


_flushers: WeakKeyDictionary[asyncio.AbstractEventLoop, Flusher] = WeakKeyDictionary()


def flusher_of(loop: asyncio.AbstractEventLoop) -> Flusher:
    """The flusher of *loop*."""
    return _flushers.get(loop) or _flushers.setdefault(loop, Flusher(loop))


def half_close(transport: asyncio.Transport) -> bool:
    """Tell the peer that nothing follows; False where it cannot be told: TLS has no half-close, or it has gone.

    asyncio's own transports raise where the peer has reset the connection and nobody has read that yet; uvloop's do
    once the connection is lost.
    """
    if transport.is_closing() or not transport.can_write_eof():
        return False
    try:
        transport.write_eof()
    except OSError:
        return False
    return True


class Connection(asyncio.Protocol):
    """A session on a transport; see `gateway.core.session` for what it owes the session."""

    __slots__ = (
        *("_deadline", "_flusher", "_held", "_house", "_loop", "_over", "_pacing", "_paused", "_portion", "_queued"),
        *("_rest", "_session", "_stalled", "_stuffed", "_turns", "transport"),
    )

    transport: asyncio.Transport
    gathers: ClassVar[int] = 0  # whether a read counts as an arrival that others' flushes may wait for

    def __init__(self, loop: asyncio.AbstractEventLoop, house: MutableSet[Any]) -> None:
        self._loop = loop
        self._house = house  # everybody who is to be told when the gateway stops
        self._flusher = flusher_of(loop)
        self._turns = turns_of(loop)
        self._session: Session | None = None
        self._held = False  # reading stopped
        self._paused = False  # the peer does not read what was written
        self._over = False  # the peer will send nothing more
        self._deadline: asyncio.TimerHandle | None = None
        self._rest: deque[bytes] | None = None  # what was read and is still to be handled
        self._portion: Portion | None = None  # how much of it at once, once something took long
        self._queued = False  # a turn to go on with that is on its way
        self._pacing: asyncio.TimerHandle | None = None  # until it goes off, nothing is handled or read
        self._stalled: asyncio.TimerHandle | None = None  # for a peer to read on
        self._stuffed = False  # answers to pings wait for a peer that does not read

    def start(self, transport: asyncio.Transport, session: Session) -> None:
        """Run *session* from now on."""
        self.transport = transport
        self._session = session
        self._house.add(self)
        if (inflow := session.bus.inflow) is not None:
            inflow.budget.enter(self)
            if wait := inflow.enter(session):
                self._hold()
                self._pacing = self._loop.call_later(wait, self._paced)
        keep_alive(transport.get_extra_info("socket"))
        session.wake = partial(self._flusher.add, self)
        session.blocked = False
        self.wake()

    def shutdown(self) -> None:
        """The gateway stops: say goodbye. (uvicorn calls this as well.)"""
        if self._session is not None and self._session.closing is None:
            self._session.goodbye()

    @property
    def holds(self) -> bool:
        """Whether nothing is to be read now."""
        return self._held

    # The session's side

    def wake(self) -> None:
        """There is something to write, or to close."""
        self._flusher.add(self)

    @property
    def waiting(self) -> int:
        """How many frames are to be written."""
        return 0 if self._session is None else self._session.waiting

    def flush(self) -> None:
        """Write what there is, a piece of what is long, and read again if there is room."""
        session = self._session
        if session is None:
            return
        if not (self._paused or self._over or self._held) and (plain := session.all_to_send()) is not None:
            self.transport.write(plain)  # nearly always
            return
        if session.closing is not None:
            self._linger()
        if self._paused:
            return
        if data := session.data_to_send():
            self.transport.write(b"".join(data))
        if session.has_more:
            self.wake()
        elif session.closing is not None or (self._over and not session.unfinished):
            self._finish(session.closing)
            return
        if self._held:
            self._read_on()

    def _hold(self) -> None:
        if not self._held and not self.transport.is_closing():
            self._held = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Handle what was read, and once that is done read more; but not while something speaks against it."""
        session = self._session
        if session is not None and (self._pacing is not None or self._stuffed or not session.readable):
            return
        if self._rest is not None:
            if not self._queued:
                self._queued = True
                self._portion = self._portion or Portion()
                self._turns.add(self, self._portion.place)
        elif self._held:
            self._held = False
            self.transport.resume_reading()

    def _finish(self, close: Close | None) -> None:
        """Everything is written. Closing with unread input would reset the connection and lose the farewell."""
        self._detach()
        self._linger()
        if close is not None:
            self.farewell(close)
        if self._over or not half_close(self.transport):
            self.transport.close()
            return
        self._rest = None  # nobody is there to hear it
        self._read_on()

    def farewell(self, close: Close) -> None:
        """Write what the wire itself has to say about the end."""

    def _linger(self) -> None:
        if self._deadline is None:
            self._deadline = self._loop.call_later(LINGER, self.transport.abort)

    def _detach(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            if (inflow := session.bus.inflow) is not None:
                inflow.budget.leave(self)
                inflow.leave(session)
            session.receive_eof()

    # What the budget asks

    @property
    def network(self) -> str:
        """Where the peer is."""
        return "" if self._session is None else self._session.network

    @property
    def holding(self) -> int:
        """How many bytes are kept for the peer."""
        session = 0 if self._session is None else self._session.holding
        return session + sum(map(len, self._rest or ())) + self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Let go of them; the peer is told if it reads."""
        self._rest = None
        if self._session is not None:
            self._session.give_up()

    # The transport's side

    def data_received(self, data: bytes) -> None:
        """Handle what arrived, or a part of it: what takes long goes on in the next turns of the loop."""
        self._flusher.arrivals += self.gathers
        portion = self._portion
        session = self._session
        if session is None:
            return  # it has ended, and what still comes is nobody's
        heavy = len(data) > FIRST or (portion is not None and portion.busy)
        if not (heavy or (session.conduct is not None and self._is_blamed(session))):
            self._turns.others += 1
        elif self._turns.over and self._rest is None:
            self._rest = deque((data,))
            self._hold()
            self._read_on()
            return
        if self._rest is not None:  # TLS may hand over what it has although reading is paused
            self._rest.append(data)
        elif len(data) > (FIRST if portion is None else portion.size):
            self._rest = deque((data,))
            self._hold()
            self.go_on()
        else:
            self._handle(data)

    @staticmethod
    def _is_blamed(session: Session) -> bool:
        return session.bus.inflow is not None and session.bus.inflow.blames(session)

    def go_on(self) -> None:
        """Handle a portion of what was read; see `gateway.shells.turns`."""
        self._queued = False
        session = self._session
        if self._rest is None or self._pacing is not None or session is None or not session.readable:
            return  # `flush` goes on when it is readable, `_paced` when the pause is over
        try:
            self._handle(self._next())
        except Exception:  # a bug in one session must not stop the others
            logger.exception("a connection failed; the others go on")
            self.transport.abort()
        else:
            self._read_on()

    def _next(self) -> bytes:
        """The next portion of what was read."""
        assert self._rest is not None
        self._portion = self._portion or Portion()
        data, size = self._rest.popleft(), self._portion.size
        if len(data) > size:
            self._rest.appendleft(data[size:])
            return data[:size]
        if not self._rest:
            self._rest = None
        return data

    def _handle(self, data: bytes) -> None:
        """Hand *data* to the session, and see what that costs."""
        begin = perf_counter()
        self.take(data)
        session, seconds = self._session, 0.0
        if self._portion is not None or perf_counter() - begin > CHEAP or (session and session.conduct is not None):
            self._portion = self._portion or Portion()
            taken = self._portion.used(begin, len(data), self._turns.length)
            self._turns.spend(taken)
            seconds = taken if self._turns.shared else 0.0  # that nobody waits for costs nobody anything
        if session is None:
            return
        if session.bus.inflow is not None and (wait := session.bus.inflow.read(session, len(data), seconds)):
            self._hold()
            self._pacing = self._loop.call_later(wait, self._paced)
        elif not session.readable:
            self._hold()

    def take(self, data: bytes) -> None:
        """Hand *data*, however it was cut, to the session in the wire's own way."""
        raise NotImplementedError

    def _paced(self) -> None:
        """The connection may be read again."""
        self._pacing = None
        self._read_on()

    def pause_writing(self) -> None:
        """The peer reads too slowly: the session keeps what it has."""
        self._paused = True
        self._watch(self.transport.get_write_buffer_size())
        if self._session is not None:
            self._session.blocked = True

    def resume_writing(self) -> None:
        """It goes on."""
        self._paused = self._stuffed = False
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self._session is not None:
            self._session.blocked = False
        self.wake()

    def _watch(self, left: int) -> None:
        self._stalled = self._loop.call_later(STALLED_SECONDS, self._look, left)

    def _look(self, before: int) -> None:
        """A peer that has taken nothing for so long is too slow, however little waits for it."""
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch(left)
        elif self._session is not None:
            self._session.overflow()

    def eof_received(self) -> bool:
        """Write what is queued, then close; True keeps the transport open until then."""
        while self._rest is not None and self._session is not None and self._session.ready:
            self._handle(self._next())  # only TLS tells of the end while something is left
        self._over = True
        self._linger()
        self.flush()
        return self._session is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # whatever the end was
        """The end."""
        for timer in (self._deadline, self._pacing, self._stalled):
            if timer is not None:
                timer.cancel()
        self._rest = None
        self._house.discard(self)
        self._detach()


class TcpProtocol(Connection):
    """A session on a TCP or TLS connection."""

    __slots__ = ("_accept",)

    def __init__(self, accept: Accept, loop: asyncio.AbstractEventLoop, house: MutableSet[Any]) -> None:
        super().__init__(loop, house)
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a session, or close."""
        self.transport = cast(asyncio.Transport, transport)
        if (peer := transport.get_extra_info("peername")) is None:  # it was reset before it was accepted
            self.transport.abort()
            return
        session = self._accept(str(peer[0]))
        if isinstance(session, Session):
            self.start(self.transport, session)
        else:
            self.transport.close()

    def take(self, data: bytes) -> None:
        """Hand it over."""
        if self._session is not None:
            self._session.receive_data(data)


async def listen(
    accept: Accept,
    host: str,
    port: int,
    *,
    tasks: TaskGroup,  # noqa: ARG001  # the signature is that of `gateway.shells.serve.listen`
    stack: AsyncExitStack,
    tls: ssl.SSLContext | None = None,
    door: Door | None = None,
    handshake_seconds: float = HANDSHAKE_SECONDS,
) -> int:
    """Serve TCP, or TLS with the context *tls*, and return the port; *door* counts those whose handshake is not done.

    When *stack* is unwound nobody is accepted any more and every session says goodbye.
    """
    loop = asyncio.get_running_loop()
    house: set[TcpProtocol] = set()

    def protocol() -> TcpProtocol:
        return TcpProtocol(accept, loop, house)

    async def close() -> None:
        for connection in list(house):
            connection.shutdown()
        while house:  # each is cut `LINGER` seconds after its goodbye
            await asyncio.sleep(0.01)

    stack.push_async_callback(close)
    if tls is None:
        server = await loop.create_server(protocol, host, port, backlog=BACKLOG)
        stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])
    listener = socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
    )
    stack.push_async_callback(TlsServer(listener, tls, door, handshake_seconds, protocol).close)
    return int(listener.getsockname()[1])


class WebSocketProtocol(Connection):
    """A session on a WebSocket, after the handshake."""

    __slots__ = ("_reader",)
    gathers = 1

    def __init__(self, loop: asyncio.AbstractEventLoop, house: MutableSet[Any], max_size: int) -> None:
        super().__init__(loop, house)
        self._reader = Reader(max_size)

    def take(self, data: bytes) -> None:
        """Hand over each message, and answer pings."""
        session = self._session
        if session is None or session.closing is not None:
            return
        messages, answers = [], []
        for opcode, payload in self._reader.feed(data):
            if opcode == TEXT:
                messages.append(payload)
            elif opcode == PING:
                answers.append(control_frame(PONG, payload))
            elif opcode == CLOSE:
                answers.append(control_frame(CLOSE, payload))
                self._over = True
        if messages:
            session.receive_all(messages)
        if self._over and not self._paused:
            answers[:0] = session.data_to_send()  # what answers the messages before the close
        if answers:
            self.transport.write(b"".join(answers))
        if self._over:
            self._finish(None)
        elif self._reader.failure is not None:
            session.close(*self._reader.failure)
        elif answers and self._paused:  # a peer that pings and does not read is not read either
            self._stuffed = True
            self._hold()

    @property
    def holding(self) -> int:
        """The unfinished message as well."""
        return super().holding + self._reader.holding

    def give_up(self) -> None:
        """Let go of that too."""
        self._reader = Reader()
        super().give_up()

    def farewell(self, close: Close) -> None:
        """Send the code."""
        self.transport.write(close_frame(*close))
