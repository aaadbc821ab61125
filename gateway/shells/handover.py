"""uvicorn's protocols as Trellis uses them: they hand an accepted WebSocket over to the fast shell.

`FastWebSocket` and `FastHttp` go to uvicorn as `ws=` and `http=`. They are subclasses of its internals:
the version is pinned, and tests/gateway/shells/test_fast.py tells when a new one does not fit.
"""

from __future__ import annotations

import asyncio
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from gateway.core.networks import network
from gateway.core.session import Session
from gateway.http.bodies import COUNTED
from gateway.http.persistent import refusal
from gateway.http.problems import Problem

from .fast import WebSocketProtocol, half_close
from .serve import EXTENSION, HANDSHAKE_SECONDS, LINGER, STALLED_SECONDS
from .steps import Answering
from .turns import Load, turns_of

if TYPE_CHECKING:
    from gateway.core.inflow import Conduct, Inflow
    from gateway.runtime import Gateway

MAX_HEAD = 1 << 16  # bytes of a request's first line and headers
MAX_PIPELINE = 4  # requests that wait for the one before them; what follows stays unread
HEAD_SLICE = 256  # bytes that are parsed at once where requests may begin, some ten requests; a body is parsed at once
LONG_HEAD_SLICE = 2 << 10  # the same where a long head goes on
CYCLE = 32 << 10  # bytes that a request takes which waits for the one before it
RETRY = {"Retry-After": "10"}  # seconds, for whom there is no room
MAX_THROWN = 4 << 20  # bytes that a client may go on sending after its last answer
REFUSED = frozenset({400, 413, 414, 422, 429})  # statuses of answers to what is malformed, or over a limit

_numbers = count(-1, -1)  # of connections; those of sessions are not below zero


class _Nowhere(asyncio.Transport):
    """What uvicorn's protocol is left with when its transport has gone to a `WebSocketProtocol`."""

    def close(self) -> None:
        """The application has returned; the connection has not ended."""


class FastWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, with a way for an accepted WebSocket to be a session's from then on.

    The ASGI extension `EXTENSION` is a function that takes the session. uvicorn's own class, its task, its
    queue and the application's stack are then done with; messages never pass through ASGI. The largest message
    is `ws_max_size`. There is no compression, whatever the configuration says: sessions send frames that are
    shared between peers, and nobody gets to send a bomb.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.available_extensions = []

    def handle_connect(self, event: Request) -> None:
        """Answer the handshake, offering the extension."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: Any = self.scope["extensions"]
            extensions[EXTENSION] = self.attach

    def data_received(self, data: bytes) -> None:
        """Refuse what uvicorn leaves open: talk before the handshake is answered, a head that is none."""
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()  # RFC 6455, section 4.1: the client MUST wait
            return
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def send(self, message: Any) -> None:
        """After the accept nothing is read until it is known who reads: the application or a session."""
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()
        elif message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # uvicorn forgets that a refusal is an answer, and logs an error

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        super().connection_lost(exc)
        self._forget_way()

    def _forget_way(self) -> None:
        """Leave nothing that refers to this connection in what it refers to: then its end frees it at once."""
        scope: Any = getattr(self, "scope", None)  # there is none without a handshake
        if scope is not None:
            scope["extensions"].pop(EXTENSION, None)

    async def receive(self) -> Any:
        """It is the application."""
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return await super().receive()

    def attach(self, session: Session) -> None:
        """It is *session*; the application returns now."""
        if self.disconnected or self.transport.is_closing():
            session.receive_eof()
            return
        self.stop_keepalive()
        self.connections.discard(self)
        self._forget_way()
        transport, self.transport = self.transport, _Nowhere()
        connection = WebSocketProtocol(self.loop, self.connections, self.config.ws_max_size)
        transport.set_protocol(connection)
        connection.start(transport, session)
        if not connection.holds:
            transport.resume_reading()


class _Flow(FlowControl):
    """uvicorn resumes reading for whoever asks for a body; it stays paused here until what was put off is parsed."""

    def __init__(self, transport: asyncio.Transport, http: FastHttp) -> None:
        super().__init__(transport)
        self._http = ref(http)  # which refers to this: neither would be freed before a collection

    def resume_reading(self) -> None:
        """Read on, if there is room."""
        http = self._http()
        if http is None or not http.is_full:
            super().resume_reading()


class FastHttp(HttpToolsProtocol):
    """uvicorn's protocol, with limits: to connections, to the time and size of a request's head, to what is kept.

    The door of *gateway* counts the connections that are not handed over, and its budget what they hold. Requests are
    parsed a few at a time: what a client sends before it was answered stays as it came, and is not read on. A request
    on a busy connection waits for its turn (`gateway.shells.turns`), one turn each, and on a connection whose requests
    are refused until what they took is paid (`gateway.core.inflow`).
    """

    gateway: Gateway | None = None
    head_seconds = HANDSHAKE_SECONDS
    stalled_seconds = STALLED_SECONDS
    max_head = MAX_HEAD
    network = ""  # that is counted
    _deadline: asyncio.TimerHandle | None = None  # for the head of a request
    _stalled: asyncio.TimerHandle | None = None  # for a client to read on
    _head = 0  # bytes of it so far
    _half_head = False  # the clock of a head stands still: the rest of it may be in `_later`
    _body = 0  # bytes of the body of the last request
    _length = 0  # bytes that it is said to have
    _later = b""  # read, and not parsed yet
    _pacing = False  # nothing is parsed for a while
    _answered = False  # a request was; before that a connection has no share of its own (`gateway.core.inflow`)
    _upgraded = False
    _refused = False  # there was no room
    _parting = False  # the last answer is written, and what still comes is thrown away
    _thrown = 0  # bytes of that
    _answering: RequestResponseCycle | None = None  # the request that is being answered; `cycle` is the last one read
    _next: tuple[RequestResponseCycle, Any] | None = None  # the request that waits for its turn, with what answers it
    conduct: Conduct | None = None  # what `gateway.core.inflow` holds against the connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._load = Load()
        self._number = next(_numbers)
        self._turns = turns_of(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The clock runs from the connection on, so a silent one ends too."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        if (reason := self._enter()) is None:
            self._await_head()
            return
        transport.write(refusal(Problem(503, reason, RETRY)))
        self._refused = self.gateway is not None and self.gateway.door.parts()
        if self._refused:
            self._part()
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._leave()
        if self._refused and self.gateway is not None:
            self.gateway.door.parted()
        self._have_head()
        self._later = b""
        self._forget_requests()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # which refers to this connection while it waits for an answer

    def shutdown(self) -> None:
        """The gateway stops: what has not ended soon after the goodbye is cut, since nobody reads it."""
        super().shutdown()
        if not self.transport.is_closing():
            self.loop.call_later(2 * LINGER, self.transport.abort)

    # What arrives

    def data_received(self, data: bytes) -> None:
        """Parse what there is room for; the rest waits for answers, or for its turn."""
        if self._parting:
            self._thrown += len(data)
            if self._thrown > MAX_THROWN:
                self.transport.abort()
            return
        if self.network and self.gateway is not None:
            self.gateway.door.busy(self)
        inflow = self._inflow
        share = self._number if self._answered else None
        wait = inflow.bytes(self.network, len(data), share) if inflow is not None else 0.0
        if wait and not self._pacing:
            self._pacing = True
            self.loop.call_later(wait, self._paced)
        if self._later or self._pacing:  # also a first request waits, which is all that some connections have
            self._put_off(data)
        else:
            self._parse(data)

    def on_response_complete(self) -> None:
        """The next request may be parsed."""
        super().on_response_complete()
        self._answered = True
        if self._is_idle() and self.network and self.gateway is not None:
            self.gateway.door.idle(self)
        elif self._later:
            self.loop.call_soon(self._go_on)

    @property
    def is_full(self) -> bool:
        """Whether there is enough to parse later."""
        return bool(self._later) and not self._parting

    def _paced(self) -> None:
        self._pacing = False
        if self._later:
            self._go_on()
        elif self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self.flow.resume_reading()

    def _go_on(self) -> None:
        if not self._pacing and not self._ends:
            data, self._later = self._later, b""
            if self._half_head:
                self._half_head = False
                self._deadline = self.loop.call_later(self.head_seconds, self.transport.abort)
            self._parse(data)
            if not self._later:
                self.flow.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Parse *data* in slices, as long as not too many requests wait for the one before them."""
        at, begin = 0, perf_counter()
        while at < len(data) and not self._ends and not self._upgraded:
            if len(self.pipeline) >= MAX_PIPELINE:
                self._put_off(data[at:])
                break
            in_body = self._deadline is None and self.cycle is not None and self.cycle.more_body
            size = self._length - self._body if in_body else min(self._head, LONG_HEAD_SLICE)
            end = at + max(HEAD_SLICE, size)
            self._parse_slice(data[at:end])
            at = end
        self.worked(perf_counter() - begin)
        idle = self.cycle is not None and self.cycle.response_complete and self.timeout_keep_alive_task is None
        if idle and not self._ends:
            self._await_head()  # blank lines before a request are the beginning of nothing, but not silence either

    def _put_off(self, data: bytes) -> None:
        """Parse *data* later; nothing more is read until then, and no clock runs."""
        self._later += data
        self.flow.pause_reading()
        if self._deadline is not None:
            self._have_head()
            self._half_head = True

    def _parse_slice(self, data: bytes) -> None:
        """Parse, and count where that did not complete the head."""
        deadline = self._deadline
        super().data_received(data)
        if deadline is not None and deadline is self._deadline:  # all of it was of one head
            self._head += len(data)
            if self._head > self.max_head and not self._ends:
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A request begins, the first or another."""
        super().on_message_begin()
        self.scope["extensions"] = {COUNTED: {}}
        self._body = self._length = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is here; too long a one is an invalid request."""
        self._have_head()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.max_head:
            raise ValueError("the head of the request is too long")
        lengths = [value for name, value in self.headers if name == b"content-length"]
        self._length = int(lengths[0]) if lengths and lengths[0].isdigit() else 0
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a request now, or when the turn of a busy connection has come."""
        self._next = cycle, Answering(app, self)
        if self.conduct is not None or self._load.busy:
            self._await_turn()
        else:
            self._start()

    def _await_turn(self) -> None:
        if wait := self._owes(0.0):
            self.loop.call_later(wait, self._await_turn)
        else:
            self._turns.add(self, self._load.place)

    def go_on(self) -> None:
        """It is the turn of the request that waits, which is all of this turn."""
        if self._next is None or self._ends:
            return
        if self._owes(0.0):  # others of the network have had turns meanwhile
            self._await_turn()
            return
        self._turns.spend(self._turns.length)
        self._start()

    def _start(self) -> None:
        assert self._next is not None
        (self._answering, app), self._next = self._next, None
        super()._start_asgi_task(self._answering, app)

    def _owes(self, seconds: float) -> float:
        """After so many *seconds* more of work: how long until what refusing its requests took is paid."""
        inflow = self._inflow
        return 0.0 if inflow is None or self.conduct is None else inflow.worked(self, seconds)

    def worked(self, seconds: float) -> None:
        """A step of parsing or answering requests took *seconds*."""
        self._load.add(seconds, perf_counter())
        if (inflow := self._inflow) is not None and inflow.blames(self):
            inflow.worked(self, seconds if self._turns.shared else 0.0)
        elif not self._load.busy:
            self._turns.others += 1

    def answered(self, status: int) -> None:
        """The answer to a request has *status*."""
        if status in REFUSED and (inflow := self._inflow) is not None:
            inflow.refused(self)

    @property
    def _inflow(self) -> Inflow | None:
        return None if self.gateway is None else self.gateway.bus.inflow

    def on_body(self, body: bytes) -> None:
        """A part of a body, which somebody may keep."""
        self._body += len(body)
        super().on_body(body)

    def handle_websocket_upgrade(self) -> None:
        """It is to be a session, which is counted where it is let in."""
        self._upgraded = True
        self._leave()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # which refers to this object, as nobody else does now

    # What is written

    def send_400_response(self, msg: str) -> None:
        """What came is no request, and this is the last answer: nobody knows where another one begins."""
        self.answered(400)
        self._forget_requests()
        self.transport.write(refusal(Problem(400, msg)))
        self._part()

    def _part(self) -> None:
        """End when the client has read all, or soon: to close with unread input would reset the connection."""
        self._parting = True
        self._have_head()
        half_close(self.transport)
        self.flow.resume_reading()
        self.loop.call_later(LINGER, self.transport.abort)

    @property
    def _ends(self) -> bool:
        return self._parting or self.transport.is_closing()

    def _forget_requests(self) -> None:
        """Nobody is answered any more; uvicorn tells the last request that was read, which may be another one."""
        self.pipeline.clear()
        self._next = None
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.waiting_for_100_continue = False  # nothing may be written behind the last answer
            self._answering.message_event.set()

    def pause_writing(self) -> None:
        """The client does not read; if it goes on like that, the connection ends."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It reads again."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _watch(self, left: int) -> None:
        self._stalled = self.loop.call_later(self.stalled_seconds, self._look, left)

    def _look(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._watch(left)

    # What the door and the budget ask

    @property
    def holding(self) -> int:
        """How many bytes are kept for the client here."""
        body = 0 if self.cycle is None else len(self.cycle.body)  # what was asked for is counted by `bodies`
        return body + len(self._later) + CYCLE * len(self.pipeline) + self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Let go of them, and of the client: half an answer cannot be ended politely."""
        self._later = b""
        self.transport.abort()

    def _enter(self) -> str | None:
        """Be counted; why there is no room, or None."""
        if self.gateway is None:
            return None
        if (peer := self.transport.get_extra_info("peername")) is None:  # it was reset before it was accepted
            self.transport.abort()
            return None
        address = str(peer[0])
        if (reason := self.gateway.door.enter(address)) is None:
            self.network = network(address)
            self.gateway.budget.enter(self)
            if (inflow := self._inflow) is not None and (wait := inflow.enter(self)):
                self._pacing = True
                self.loop.call_later(wait, self._paced)
        return reason

    def give_way(self) -> None:
        """Another connection needs the place, and nothing is asked on this one."""
        self._leave()
        self.transport.close()

    def _is_idle(self) -> bool:
        return self.timeout_keep_alive_task is not None and not self._later and not self._ends

    def _leave(self) -> None:
        if self.network and self.gateway is not None:
            self.gateway.door.busy(self)
            self.gateway.door.leave(self.network)
            self.gateway.budget.leave(self)
            if (inflow := self._inflow) is not None:
                inflow.leave(self)
            self.network = ""

    def _await_head(self) -> None:
        if self._deadline is None:
            self._head = 0
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _have_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
