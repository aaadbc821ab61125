"""A session directly on an asyncio transport, of any wire protocol.

Input is passed to the session in the call that reports it, in portions if it takes long (`gateway.shells.turns`).
Output waits until the end of the turn of the loop (`gateway.shells.flusher`). A peer needs no task, no queue and no
timer; only a connection that is closing has a timer, for `LINGER_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import MutableSet
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

from gateway.core.outbox import Close
from gateway.core.session import Session

from .cpu_time import cpu_since, cpu_time
from .flusher import flusher_of
from .portable_shell import LINGER_SECONDS, STALLED_SECONDS, enable_keepalive
from .turns import CHEAP_SECONDS, FIRST_PORTION, MIN_PORTION, Portion, turns_of

DISCARD_PAUSE_SECONDS = 0.02  # between two reads of what is discarded

logger = logging.getLogger(__name__)


def half_close(transport: asyncio.Transport) -> bool:
    """Close the sending direction; return False if that is impossible: TLS has no half-close, or the peer is gone.

    asyncio's own transports raise if the peer has reset the connection and that has not been read yet; those of uvloop
    do once the connection is lost.
    """
    if transport.is_closing() or not transport.can_write_eof():
        return False
    try:
        transport.write_eof()
    except OSError:
        return False
    return True


class Connection(asyncio.Protocol):
    """A session on a transport; `gateway.core.session` has the contract between them."""

    __slots__ = (
        *("_connections", "_eof", "_flusher", "_handled_size", "_linger_timer", "_loop", "_pause_timer"),
        *("_pongs_unread", "_portion", "_reading_paused", "_session", "_stall_timer", "_turn_requested", "_turns"),
        *("_unhandled", "_writing_paused", "transport"),
    )

    transport: asyncio.Transport
    arrivals_per_read: ClassVar[int] = 0  # whether a read counts as an arrival that others' flushes may wait for

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: MutableSet[Any]) -> None:
        self._loop = loop
        self._connections = connections  # all open ones: the gateway says goodbye to them when it stops
        self._flusher = flusher_of(loop)
        self._turns = turns_of(loop)
        self._session: Session | None = None
        self._reading_paused = False  # the transport is not read
        self._writing_paused = False  # the transport is full: the peer does not read
        self._eof = False  # the peer will send nothing more
        self._linger_timer: asyncio.TimerHandle | None = None
        self._unhandled: deque[bytes] | None = None  # input that was read and not handled yet
        self._handled_size = 0  # bytes of its first piece that were
        self._portion: Portion | None = None  # how much of it to handle at once, once something took long
        self._turn_requested = False  # `take_turn` will be called
        self._pause_timer: asyncio.TimerHandle | None = None  # while it runs, nothing is handled or read
        self._stall_timer: asyncio.TimerHandle | None = None  # for the peer to read again
        self._pongs_unread = False  # the peer pings and does not read the pongs

    def start(self, transport: asyncio.Transport, session: Session) -> None:
        """Run *session* on *transport* from now on."""
        self.transport = transport
        self._session = session
        self._connections.add(self)
        if (read_pacer := session.bus.read_pacer) is not None:
            read_pacer.budget.enter(self)
            if wait := read_pacer.connection_opened(session):
                self._pause_reading()
                self._pause_timer = self._loop.call_later(wait, self._pause_over)
        enable_keepalive(transport.get_extra_info("socket"))
        session.wake = partial(self._flusher.add, self)
        session.blocked = False
        self.wake()

    def shutdown(self) -> None:
        """Say goodbye, since the gateway stops. uvicorn calls this as well."""
        if self._session is not None and self._session.closing is None:
            self._session.goodbye()

    @property
    def reading_paused(self) -> bool:
        """Whether reading is paused."""
        return self._reading_paused

    # The session's side

    def wake(self) -> None:
        """Flush soon: there is data to write, or the session closes."""
        self._flusher.add(self)

    @property
    def waiting(self) -> int:
        """Return the number of frames to write."""
        return 0 if self._session is None else self._session.waiting

    def flush(self) -> None:
        """Write what is queued, long answers in pieces, and resume reading if there is room."""
        session = self._session
        if session is None:
            return
        if (
            not (self._writing_paused or self._eof or self._reading_paused)
            and (plain := session.all_to_send()) is not None
        ):
            self.transport.write(plain)  # nearly always
            return
        if session.closing is not None:
            self._linger()
        if self._writing_paused:
            return
        if data := session.data_to_send():
            self.transport.write(b"".join(data))
        if session.has_more:
            self.wake()
        elif session.closing is not None or (self._eof and not session.unfinished):
            self._finish(session.closing)
            return
        if self._reading_paused:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        """Handle what was read, then read more; do neither during a pause or while the session is not readable."""
        session = self._session
        if session is not None and (self._pause_timer is not None or self._pongs_unread or not session.ask_to_read()):
            return
        if self._unhandled is not None:
            if not self._turn_requested:
                self._turn_requested = True
                portion = self._portion = self._portion or Portion()
                if portion.busy or (session is not None and self._is_penalized(session)):
                    self._turns.add(self, portion.priority)
                else:
                    self._turns.add_light(self, sum(map(len, self._unhandled)) - self._handled_size)
        elif self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def _finish(self, close: Close | None) -> None:
        """Close in order, after everything is written: closing with unread input would reset the connection."""
        self._detach()
        self._linger()
        if close is not None:
            self.write_close(close)
        if self._eof or not half_close(self.transport):
            self.transport.close()
            return
        self._unhandled = None  # the session has ended
        self._resume_reading()

    def write_close(self, close: Close) -> None:
        """Write the close frame of the wire, if it has one."""

    def _linger(self) -> None:
        if self._linger_timer is None:
            self._linger_timer = self._loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _detach(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            if (read_pacer := session.bus.read_pacer) is not None:
                read_pacer.budget.leave(self)
                read_pacer.connection_closed(session)
            session.receive_eof()

    # What the budget asks

    @property
    def network(self) -> str:
        """Return the network of the peer."""
        return "" if self._session is None else self._session.network

    @property
    def held_size(self) -> int:
        """Return how many bytes are kept for the peer."""
        session = 0 if self._session is None else self._session.held_size
        return session + sum(map(len, self._unhandled or ())) + self.transport.get_write_buffer_size()

    def release_memory(self) -> None:
        """Discard input and output, and close; the peer gets the reason if it reads."""
        self._unhandled = None
        if self._session is not None:
            self._session.release_memory()

    # The transport's side

    def data_received(self, data: bytes) -> None:
        """Handle what arrived, or a portion of it; the rest follows in later turns of the loop."""
        self._flusher.arrivals += self.arrivals_per_read
        portion = self._portion
        session = self._session
        if session is None:
            self._discard()
            return
        heavy = len(data) > FIRST_PORTION or (portion is not None and portion.busy)
        if not (heavy or (session.penalty is not None and self._is_penalized(session))):
            self._turns.other_arrivals += 1
        elif self._turns.is_used_up and self._unhandled is None:
            self._postpone(data)
            self._resume_reading()
            return
        if self._unhandled is not None:  # TLS may hand over what it has although reading is paused
            self._unhandled.append(data)
            if session.bus.read_pacer is not None:
                session.bus.read_pacer.budget.record_read(len(data))
        elif len(data) > (FIRST_PORTION if portion is None else portion.size):
            self._postpone(data)
            self.take_turn()
        else:
            self._handle(data)

    def _discard(self) -> None:
        """Discard what arrives after the session, a read at a time: uvloop would read 32 times before others."""
        if self._pause_timer is None:
            self._pause_timer = self._loop.call_later(DISCARD_PAUSE_SECONDS, self._pause_over)
        self._pause_reading()

    def _postpone(self, data: bytes) -> None:
        self._unhandled = deque((data,))
        self._handled_size = 0
        self._pause_reading()

    @staticmethod
    def _is_penalized(session: Session) -> bool:
        return session.bus.read_pacer is not None and session.bus.read_pacer.is_penalized(session)

    def take_turn(self) -> None:
        """Handle a portion of the input; see `gateway.shells.turns`."""
        self._turn_requested = False
        session = self._session
        if self._unhandled is None or self._pause_timer is not None or session is None or not session.ask_to_read():
            return  # `flush` continues when the session may be read, `_pause_over` when the pause ends
        try:
            self._handle(self._next_portion())
        except Exception:  # a bug in one session must not affect the others
            logger.exception("a connection failed; the others go on")
            self.transport.abort()
        else:
            self._resume_reading()

    def _next_portion(self) -> bytes:
        """Return the next portion of the input, and tell the session whether more was read."""
        assert self._unhandled is not None
        assert self._session is not None
        self._portion = self._portion or Portion()
        begin, end, data = self._handled_size, self._handled_size + self._portion.size, self._unhandled[0]
        if len(data) > end:
            self._handled_size = end  # the rest stays where it is: copying it for each portion costs more than handling
        else:
            self._handled_size = 0
            self._unhandled.popleft()
            if not self._unhandled:
                self._unhandled = None
        data = data[begin:end]
        self._session.more_follows = self._unhandled is not None
        return data

    def _handle(self, data: bytes) -> None:
        """Hand *data* to the session, and measure what that costs."""
        began = None
        if (portion := self._portion) is not None:  # a call to the kernel takes a microsecond
            began = cpu_time() if len(data) > MIN_PORTION else portion.begin()
        begin = perf_counter()
        self.feed(data)
        session, seconds = self._session, 0.0
        if (
            self._portion is not None
            or perf_counter() - begin > CHEAP_SECONDS
            or (session and session.penalty is not None)
        ):
            self._portion = self._portion or Portion()
            used = self._portion.used(begin, len(data), self._turns.budget_seconds, cpu_since(began))
            self._turns.spend(perf_counter() - begin)
            seconds = used if self._turns.shared else 0.0  # it costs others nothing while they have no input
        if session is None:
            return
        if session.bus.read_pacer is not None and (
            wait := session.bus.read_pacer.record_read(session, len(data), seconds)
        ):
            self._pause_reading()
            self._pause_timer = self._loop.call_later(wait, self._pause_over)
        elif not session.ask_to_read():
            self._pause_reading()

    def feed(self, data: bytes) -> None:
        """Hand *data*, however it was segmented, to the session as the wire requires."""
        raise NotImplementedError

    def _pause_over(self) -> None:
        """Resume reading after a pause."""
        self._pause_timer = None
        self._resume_reading()

    def pause_writing(self) -> None:
        """Stop writing, since the peer reads too slowly; the session keeps its data."""
        self._writing_paused = True
        self._watch_stall(self.transport.get_write_buffer_size())
        if self._session is not None:
            self._session.blocked = True

    def resume_writing(self) -> None:
        """Write again."""
        self._writing_paused = self._pongs_unread = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._session is not None:
            self._session.blocked = False
        self.wake()

    def _watch_stall(self, left: int) -> None:
        self._stall_timer = self._loop.call_later(STALLED_SECONDS, self._check_stall, left)

    def _check_stall(self, before: int) -> None:
        """Close the connection if the peer has read nothing since *before*, however little waits for it."""
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_stall(left)
        elif self._session is not None:
            self._session.overflow()

    def eof_received(self) -> bool:
        """Write what is queued, then close; return True to keep the transport open until then."""
        while self._unhandled is not None and self._session is not None and self._session.ready:
            self._handle(self._next_portion())  # only TLS reports the end while input is left
        self._eof = True
        self._linger()
        self.flush()
        return self._session is not None and self.transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # every end is handled alike
        """End the session and stop the timers."""
        for timer in (self._linger_timer, self._pause_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._unhandled = None
        self._connections.discard(self)
        self._detach()
