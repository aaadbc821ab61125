"""uvicorn's WebSocket protocol as Trellis uses it: it hands an accepted WebSocket over to the fast shell.

`FastWebSocket` goes to uvicorn as `ws=`. It is a subclass of uvicorn's internals: the version is pinned, and
tests/gateway/shells/test_fast.py tells when a new one does not fit.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from gateway.core.session import Session

from .fast import WebSocketProtocol
from .serve import SESSION_EXTENSION


class _DetachedTransport(asyncio.Transport):
    """What uvicorn's protocol is left with when its transport has gone to a `WebSocketProtocol`."""

    def close(self) -> None:
        """The application has returned; the connection has not ended."""


class FastWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol, with a way for an accepted WebSocket to be a session's from then on.

    The ASGI extension `SESSION_EXTENSION` is a function that takes the session. uvicorn's own class, its task, its
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
            extensions[SESSION_EXTENSION] = self.attach

    def data_received(self, data: bytes) -> None:
        """Refuse what uvicorn does not: data before the handshake is answered, and a malformed head."""
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
        self._remove_extension()

    def _remove_extension(self) -> None:
        """Leave nothing that refers to this connection in what it refers to: then its end frees it at once."""
        scope: Any = getattr(self, "scope", None)  # there is none without a handshake
        if scope is not None:
            scope["extensions"].pop(SESSION_EXTENSION, None)

    async def receive(self) -> Any:
        """The application reads: resume reading for it."""
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
        self._remove_extension()
        transport, self.transport = self.transport, _DetachedTransport()
        connection = WebSocketProtocol(self.loop, self.connections, self.config.ws_max_size)
        transport.set_protocol(connection)
        connection.start(transport, session)
        if not connection.reading_paused:
            transport.resume_reading()
