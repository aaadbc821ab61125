"""The fast shell: runs sessions directly on asyncio transports, over TCP and over WebSockets after the handshake.

`gateway.shells.connection` has what both wires share; this file has what each of them adds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import MutableSet
from contextlib import AsyncExitStack
from typing import Any, cast

from anyio.abc import TaskGroup

from gateway.core.outbox import Close
from gateway.core.session import Session

from .connection import Connection
from .tcp_server import BACKLOG, Accept, Handshakes
from .tls import TlsServer
from .websocket_parser import CLOSE, PING, PONG, TEXT, Reader, close_frame, control_frame


class TcpProtocol(Connection):
    """A session on a TCP or TLS connection."""

    __slots__ = ("_accept",)

    def __init__(self, accept: Accept, loop: asyncio.AbstractEventLoop, connections: MutableSet[Any]) -> None:
        super().__init__(loop, connections)
        self._accept = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a session for the peer, or close the connection."""
        self.transport = cast(asyncio.Transport, transport)
        if (peer := transport.get_extra_info("peername")) is None:  # the connection was reset before it was accepted
            self.transport.abort()
            return
        session = self._accept(str(peer[0]))
        if isinstance(session, Session):
            self.start(self.transport, session)
            if self._reading_paused:
                self._loop.call_soon(self._keep_paused)
        else:
            self.transport.close()

    def _keep_paused(self) -> None:
        """Pause again: uvloop starts to read after `connection_made`, even if reading was paused there."""
        if self._reading_paused and not self.transport.is_closing():
            self.transport.pause_reading()

    def feed(self, data: bytes) -> None:
        """Hand *data* to the session."""
        if self._session is not None:
            self._session.receive_data(data)


async def listen(
    accept: Accept,
    host: str,
    port: int,
    *,
    tasks: TaskGroup,  # noqa: ARG001  # the signature is that of `gateway.shells.tcp_server.listen`
    stack: AsyncExitStack,
    tls: Handshakes | None = None,
) -> int:
    """Serve TCP, or TLS with the handshakes *tls*, and return the port, like `gateway.shells.tcp_server.listen`."""
    loop = asyncio.get_running_loop()
    connections: set[TcpProtocol] = set()

    def protocol() -> TcpProtocol:
        return TcpProtocol(accept, loop, connections)

    async def close() -> None:
        for connection in list(connections):
            connection.shutdown()
        while connections:  # each is aborted `LINGER_SECONDS` after its goodbye
            await asyncio.sleep(0.01)

    stack.push_async_callback(close)
    if tls is None:
        server = await loop.create_server(protocol, host, port, backlog=BACKLOG)
        stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])
    listener = socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
    )
    stack.push_async_callback(TlsServer(listener, tls, protocol).close)
    return int(listener.getsockname()[1])


class WebSocketProtocol(Connection):
    """A session on a WebSocket, after the handshake."""

    __slots__ = ("_reader",)
    arrivals_per_read = 1

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: MutableSet[Any], max_size: int) -> None:
        super().__init__(loop, connections)
        self._reader = Reader(max_size)

    def feed(self, data: bytes) -> None:
        """Hand each message to the session, and answer pings and a close."""
        session = self._session
        if session is None or session.closing is not None:
            return
        messages, answers, closed = [], [], False
        for opcode, payload in self._reader.feed(data):
            if opcode == TEXT:
                messages.append(payload)
            elif opcode == PING:
                answers.append(control_frame(PONG, payload))
            elif opcode == CLOSE:
                answers.append(control_frame(CLOSE, payload))
                closed = True
        if messages:
            session.receive_all(messages)
        if closed and not self._writing_paused:
            answers[:0] = session.data_to_send()  # the answers to the messages before the close
        if answers:
            self.transport.write(b"".join(answers))
        if closed:
            self._finish(None)
        elif self._reader.failure is not None:
            session.close(*self._reader.failure)
        elif answers and self._writing_paused:  # do not read a peer that pings but does not read the pongs
            self._pongs_unread = True
            self._pause_reading()

    @property
    def held_size(self) -> int:
        """Return how many bytes are kept for the peer, with its unfinished message."""
        return super().held_size + self._reader.held_size

    def release_memory(self) -> None:
        """Discard the unfinished message too."""
        self._reader = Reader()
        super().release_memory()

    def write_close(self, close: Close) -> None:
        """Send a close frame."""
        self.transport.write(close_frame(*close))
