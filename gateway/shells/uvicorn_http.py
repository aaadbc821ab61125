"""uvicorn's HTTP/1.1 protocol, extended by limits and by turns of the event loop.

`FastHttp` is given to uvicorn as `http=`. It is a subclass of its internals: the version is pinned, and
tests/gateway/shells/test_fast_shell.py fails if a new one does not fit. uvicorn itself parses all input at once, keeps
pipelined requests without a limit, and waits for a client for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakMethod, ref

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.core.networks import network
from gateway.core.session import Session
from gateway.http.bodies import PACED_EXTENSION
from gateway.http.events import DETACH_EXTENSION
from gateway.http.fast_publish import Answer
from gateway.http.persistent import raw_response
from gateway.http.problems import Problem

from .connection import half_close
from .cpu_time import CpuTime, cpu_since
from .http_gateway import RETRY_HEADERS
from .portable_shell import LINGER_SECONDS
from .step_times import ObservedApp
from .turns import CHEAP_SECONDS, LoopUsage, turns_of
from .uvicorn_events import run_stream
from .uvicorn_pacing import PacedHttp
from .uvicorn_websocket import DetachedTransport

MAX_PIPELINE = 4  # requests that wait for the one before them; later input stays unread
HEAD_SLICE = 256  # bytes parsed at once where requests may begin, some ten requests; a body is parsed at once
LONG_HEAD_SLICE = 2 << 10  # bytes parsed at once within a long head
MAX_SLICES = 64  # parsed at once, half a millisecond of small chunks or requests; the rest in the loop's next turn
BUSY_SLICES = 8  # the same on a busy connection, in a turn of its own
CYCLE_BYTES = 32 << 10  # memory of a request that waits for the one before it


class _FlowControl(FlowControl):
    """Keeps reading paused until postponed input is parsed; uvicorn resumes it whenever a body is awaited."""

    def __init__(self, transport: asyncio.Transport, http: FastHttp) -> None:
        super().__init__(transport)
        self._http = ref(http)  # which refers to this: neither would be freed before a collection

    def resume_reading(self) -> None:
        """Resume reading unless input is postponed."""
        http = self._http()
        if http is None or not http.has_unparsed:
            super().resume_reading()


class FastHttp(PacedHttp):
    """uvicorn's protocol, with limits: to connections, to the time and size of a request's head, to what is kept.

    The admission of *gateway* counts the connections that are not handed over, and its budget the bytes that they hold.
    Requests are parsed a few at a time: what a client sends before it was answered is kept unparsed, and no more is
    read. Each request on a busy connection waits for a turn of its own (`gateway.shells.turns`), and each of a network
    that is in debt in a queue (`gateway.shells.waiting_requests`).
    """

    _head_suspended = False  # the head timer is stopped: the rest of the head may be in `_unparsed`
    _unparsed = b""  # read, and not parsed yet, beyond the first `_parsed_size` bytes
    _parsed_size = 0
    _upgraded = False
    _refusal_counted = False  # there was no room for the connection, and it is counted while it lingers
    _lingering = False  # the last response is written; further input is discarded
    _answering: RequestResponseCycle | None = None  # the request that is being answered; `cycle` is the last one read
    _waiting: tuple[RequestResponseCycle, Any] | None = None  # the request that is answered next, by an application
    _queued = False  # `_waiting` waits for a turn, or in the queue for one
    _measuring = False  # a step is being measured; see `_measure`

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._usage = LoopUsage()
        self._turns = turns_of(self.loop)
        self.begin_step = self._turns.cpu_clock.begin  # see `worked`
        self._extensions: dict[str, Any] = {PACED_EXTENSION: {}, DETACH_EXTENSION: WeakMethod(self.detach)}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection and start the timer of the head, or refuse it."""
        super().connection_made(transport)
        self.flow = _FlowControl(transport, self)
        if (reason := self._enter()) is None:
            self._begin_head()
            self._watch_head()
            return
        transport.write(raw_response(Problem("too-many-connections", reason, RETRY_HEADERS)))
        self._refusal_counted = self.gateway is not None and self.gateway.admission.begin_refusal()
        if self._refusal_counted:
            self._linger()
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._leave()
        if self._refusal_counted and self.gateway is not None:
            self.gateway.admission.end_refusal()
        self._unparsed = b""
        self._forget_requests()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # which refers to this connection while it waits for an answer

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Parse as much as there is room for; the rest waits for earlier responses or for its turn."""
        if self._lingering:
            self._discard(len(data))
            return
        if self.network and self.gateway is not None:
            self.gateway.admission.mark_busy(self)
        self._pace(len(data))
        if self._unparsed or self._paused:  # even a first request waits: some connections have no other
            self._postpone(data)
        else:
            self._parse(data)

    def on_response_complete(self) -> None:
        """Parse the next request."""
        super().on_response_complete()
        self._answered = True
        if self._is_idle() and self.network and self.gateway is not None:
            self.gateway.admission.mark_idle(self)
        elif self._unparsed:
            self.loop.call_soon(self._resume_parsing)

    @property
    def has_unparsed(self) -> bool:
        """Whether input is postponed."""
        return bool(self._unparsed) and not self._lingering

    def _resume(self) -> None:
        if self._unparsed:
            self._resume_parsing()
        elif self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self.flow.resume_reading()

    def _resume_parsing(self) -> None:
        if not self._paused and not self._ending:
            data, at, self._unparsed = self._unparsed, self._parsed_size, b""
            self._head_suspended = False
            self._parse(data, at)
            if not self._unparsed:
                self.flow.resume_reading()

    def _parse(self, data: bytes, at: int = 0) -> None:
        """Parse *data* from *at* on in slices, as long as not too many requests wait for the one before them."""
        self._measure(partial(self._parse_slices, data, at))
        if self._ending:
            return
        if self.cycle is not None and self.cycle.response_complete and self._idle_since is None:
            self._begin_head()  # blank lines begin no request, but must not stop the timers
        if not self._head_suspended:
            self._watch_head()

    def _parse_slices(self, data: bytes, at: int) -> None:
        slices, limit = 0, BUSY_SLICES if self._usage.busy else MAX_SLICES
        while at < len(data) and not self._ending and not self._upgraded:
            if len(self.pipeline) >= MAX_PIPELINE:
                self._postpone(data, at)
                break
            in_body = not self._in_head and self.cycle is not None and self.cycle.more_body
            size = self._body_length - self._body_size if in_body else min(self._head_size, LONG_HEAD_SLICE)
            end = at + max(HEAD_SLICE, size)
            self.parse(data[at:end])
            at = end
            slices += 1
            if slices >= limit and at < len(data) and not self._ending and not self._upgraded:
                self._postpone(data, at)
                self._continue_parsing()
                break

    def _continue_parsing(self) -> None:
        """Parse what was postponed in the next turn of the loop; on a busy connection, when its turn has come."""
        if self._usage.busy:
            self._turns.add(self, self._usage.priority)
        else:
            self.loop.call_soon(self._resume_parsing)

    def _postpone(self, data: bytes, at: int = 0) -> None:
        """Parse *data* from *at* on later; until then nothing is read and the timer of the head is stopped.

        A connection in a queue is read all the same: only so is a client noticed that has given up, and loses its turn.
        """
        if self._unparsed:
            data, at = self._unparsed[self._parsed_size :] + data, 0
        self._unparsed, self._parsed_size = data, at
        if not self._in_queue or len(data) > self.max_head:
            self.flow.pause_reading()
        if self._in_head:
            self._stop_head_timer()
            self._head_suspended = True

    def on_headers_complete(self) -> None:
        """Offer the application the ASGI extensions of this server; chunks need HTTP/1.1."""
        has_chunks = self.parser.get_http_version() == "1.1"
        self.scope["extensions"] = self._extensions if has_chunks else {PACED_EXTENSION: {}}
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a request once what was read is parsed; on a busy or penalised connection, or in debt, in its turn."""
        self._waiting = cycle, app
        self._queued = self.penalty is not None or self._usage.busy or self._charge(0.0) > 0
        if self._queued:
            self._await_turn()
        elif not self._measuring:
            self._measure(self._start_answer)

    def _await_turn(self) -> None:
        if self._charge(0.0):
            self._queues.join(self)
        else:
            self._turns.add(self, self._usage.priority)

    def admit(self) -> None:
        """Give the request that has waited in the queue a turn, or parse the head that has."""
        if self._waiting is None:
            super().admit()
        elif not self._ending:
            self._turns.add(self, self._usage.priority)

    def take_turn(self) -> None:
        """Answer the waiting request, or parse more if there is none; either uses up this turn of the loop."""
        if self._ending:
            return
        wait = self._charge(0.0)
        if self._waiting is None:
            if self._unparsed and not self._paused:
                self._turns.spend(self._turns.budget_seconds)
                if wait:
                    self._pause_for(wait)
                else:
                    self._resume_parsing()
        elif wait:  # others of the network have had turns meanwhile
            self._queues.join(self, first=True)
        else:
            self._turns.spend(self._turns.budget_seconds)
            self._measure(self._start_answer)
            if self._unparsed:  # the turn may have been for that
                self._continue_parsing()

    def _measure(self, work: Callable[[], None]) -> None:
        """Do *work*, then start to answer the requests that need no turn; charge the time of both."""
        if self._measuring:  # the call around this one does the rest
            work()
            return
        cpu_began, clock_began, self._measuring = self.begin_step(), perf_counter(), True
        try:
            work()
            while self._waiting is not None and not self._queued:
                self._start_answer()
        finally:
            self._measuring = False
        self.worked(perf_counter() - clock_began, cpu_began)

    def _start_answer(self) -> None:
        assert self._waiting is not None
        (self._answering, app), self._waiting = self._waiting, None
        if not self.answers_directly(self._answering):
            observed: Any = ObservedApp(app, self)
            super()._start_asgi_task(self._answering, observed)

    def _write_answer(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        """Write a direct answer in a step of its own: most are written after the step that took the request."""
        self._measure(partial(super()._write_answer, cycle, answer))

    def worked(self, seconds: float, began: CpuTime | None) -> None:
        """Record that a step of parsing or answering took *seconds*; *began* is the CPU time when it began."""
        used = self._usage.add(seconds, perf_counter(), cpu_since(began) if seconds > CHEAP_SECONDS else None)
        if (read_pacer := self._read_pacer) is not None and read_pacer.is_penalized(self):
            self._charge(used if self._turns.shared else 0.0)
        else:
            self._charge(used)
            self._turns.other_arrivals += not self._usage.busy

    def handle_websocket_upgrade(self) -> None:
        """Stop counting the connection: it becomes a session, which is counted when it is admitted.

        The network is charged for the handshake all the same.
        """
        self._upgraded = True
        read_pacer, network, begin = self._read_pacer, self.network, perf_counter()
        self._leave()
        if read_pacer is not None:
            websocket: Any = self.ws_protocol_class  # FastWebSocket
            observed: Any = partial(websocket, charge=partial(read_pacer.charge_network, network))
            self.ws_protocol_class = observed
        super().handle_websocket_upgrade()
        if read_pacer is not None:
            read_pacer.charge_network(network, perf_counter() - begin)
        self.parser = None  # type: ignore[assignment]  # it holds the last reference to this object

    def detach(self, session: Session) -> None:
        """Let *session*, whose response has begun, have the connection; its chunks follow.

        Requests behind that one would never be answered, and are dropped. If the client is gone, the session ends.
        """
        if self._ending or self._answering is None:
            session.receive_eof()
            return
        self._leave()
        self._forget_requests()
        self._unparsed = b""
        self._stop_timers()
        self.connections.discard(self)
        self.parser = None  # type: ignore[assignment]  # it refers to this object
        transport, self.transport = self.transport, DetachedTransport()
        self._answering.transport = self.transport
        run_stream(session, transport, self.flow, self.loop, self.connections)

    # What is written

    def send_400_response(self, msg: str) -> None:
        """Send the last response: after input that is no request, the start of another cannot be found."""
        self.refuse(Problem("malformed-request", msg))

    def refuse(self, problem: Problem) -> None:
        """Send *problem* as the last response."""
        if self._ending:
            return
        self.answered(problem.status)
        self._forget_requests()
        self.transport.write(raw_response(problem))
        self._linger()

    def _linger(self) -> None:
        """Close once the client has closed, or soon: closing with unread input would reset the connection."""
        self._lingering = True
        self._stop_head_timer()
        half_close(self.transport)
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    @property
    def _ending(self) -> bool:
        return self._lingering or self.transport.is_closing()

    def _forget_requests(self) -> None:
        """Drop all requests; uvicorn itself disconnects only the last one that was read."""
        self.pipeline.clear()
        self._waiting = None
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.waiting_for_100_continue = False  # nothing may be written after the last response
            self._answering.message_event.set()

    # For the admission and the budget

    @property
    def held_size(self) -> int:
        """Return how many bytes are kept for the client here."""
        body = 0 if self.cycle is None else len(self.cycle.body)  # `bodies` counts what the application has read
        return body + len(self._unparsed) + CYCLE_BYTES * len(self.pipeline) + self.transport.get_write_buffer_size()

    def release_memory(self) -> None:
        """Discard what is kept for the client and abort the connection: half a response must not look complete."""
        self._unparsed = b""
        self.transport.abort()

    def _enter(self) -> str | None:
        """Count the connection; return a reason if there is no room, else None."""
        if self.gateway is None:
            return None
        if (peer := self.transport.get_extra_info("peername")) is None:  # it was reset before it was accepted
            self.transport.abort()
            return None
        address = self.gateway.proxies.connection(str(peer[0]), self._number)
        if (reason := self.gateway.admission.enter(address)) is None:
            self.network = network(address)
            self.gateway.budget.enter(self)
            self._pace_opened()
        return reason

    def close_idle(self) -> None:
        """Close this idle connection to make room for another."""
        self._leave()
        self.transport.close()

    def _is_idle(self) -> bool:
        return self._idle_since is not None and not self._unparsed and not self._ending

    def _leave(self) -> None:
        if self.network and self.gateway is not None:
            self.gateway.admission.mark_busy(self)
            self.gateway.admission.leave(self.network)
            self.gateway.budget.leave(self)
            self._queues.leave(self)
            if (read_pacer := self._read_pacer) is not None:
                read_pacer.connection_closed(self)
            self.network = ""
