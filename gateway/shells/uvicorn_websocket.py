"""uvicorn's WebSocket protocol, extended so that it hands an accepted WebSocket over to the fast shell.

`FastWebSocket` is given to uvicorn as `ws=`. It is a subclass of uvicorn's internals: the version is pinned, and
tests/gateway/shells/test_fast_shell.py fails if a new one does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from gateway.core.session import Session

from .fast_shell import WebSocketProtocol
from .portable_shell import SESSION_EXTENSION
from .step_times import TimedSteps


class DetachedTransport(asyncio.Transport):
    """Replaces the transport of uvicorn's protocol once a `Connection` owns the real one."""

    def close(self) -> None:
        """Do nothing: the application has returned, but the connection stays open."""


class FastWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which can hand an accepted WebSocket over to a session.

    The ASGI extension `SESSION_EXTENSION` is a function that takes the session. uvicorn's own object, its task, its
    queue and the stack of the application are then released; messages never pass through ASGI. The largest message
    has `ws_max_size` bytes. There is no compression, whatever the configuration says: sessions send frames that are
    shared between peers, and a compressed message could be a decompression bomb.
    """

    def __init__(self, *args: Any, charge: Callable[[float], object] = lambda _seconds: None, **kwargs: Any) -> None:
        """*charge* is told how many seconds each step of answering the handshake took."""
        super().__init__(*args, **kwargs)
        self._charge = charge
        self.conn.available_extensions = []

    def handle_connect(self, event: Request) -> None:
        """Answer the handshake, and offer the extension to the application."""
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: Any = self.scope["extensions"]
            extensions[SESSION_EXTENSION] = self.attach

    def data_received(self, data: bytes) -> None:
        """Refuse what uvicorn does not: data before the handshake is answered, and malformed heads."""
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()  # RFC 6455, section 4.1: the client MUST wait
            return
        super().data_received(data)
        if not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def run_asgi(self) -> None:
        """Run the application, which is over as soon as it hands the WebSocket over."""
        await TimedSteps(super().run_asgi(), self)

    def begin_step(self) -> None:
        """Do nothing: only the clock is read, not the CPU time."""

    def worked(self, seconds: float, began: object) -> None:  # noqa: ARG002  # see `begin_step`
        """Charge what the step took."""
        self._charge(seconds)

    async def send(self, message: Any) -> None:
        """Send *message*; after the accept, pause reading until either the application or a session reads."""
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()
        elif message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # uvicorn does not count a refusal as an answer, and would log an error

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what refers to this object."""
        super().connection_lost(exc)
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break the reference cycles through the scope and the parser, so that both are freed at once."""
        self.conn.parser.close()
        scope: Any = getattr(self, "scope", None)  # missing without a handshake
        if scope is not None:
            scope["extensions"].pop(SESSION_EXTENSION, None)

    async def receive(self) -> Any:
        """Resume reading if it is paused, then return the next event for the application."""
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self.transport.resume_reading()
        return await super().receive()

    def attach(self, session: Session) -> None:
        """Hand the connection over to *session*; the application returns now."""
        if self.disconnected or self.transport.is_closing():
            session.receive_eof()
            return
        self.stop_keepalive()
        self.connections.discard(self)
        self._break_cycles()
        transport, self.transport = self.transport, DetachedTransport()
        connection = WebSocketProtocol(self.loop, self.connections, self.config.ws_max_size)
        transport.set_protocol(connection)
        connection.start(transport, session)
        if not connection.reading_paused:
            transport.resume_reading()
