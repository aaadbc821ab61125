"""Accepts TCP and TLS connections for the portable shell (`portable_shell.py`), and runs a session on each."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple, Protocol

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup
from anyio.streams.tls import TLSStream

from gateway.adapter import Refusal
from gateway.core.networks import network
from gateway.core.read_pacer import ReadPacer
from gateway.core.session import Session

from .input_turns import InputTurns, input_turns
from .portable_shell import DISCONNECTED, HANDSHAKE_SECONDS, LINGER_SECONDS, StreamWire, Wire, enable_keepalive, serve

BACKLOG = 4096  # connections that the kernel queues until they are accepted
ACCEPT_RETRY_SECONDS = 0.1  # after a failure to accept, which usually means that no file descriptor is left
CANNOT_ACCEPT = "a connection could not be accepted; trying again: %s; raise the limit of open files if this repeats"

Accept = Callable[[str], Session | Refusal]  # from the address of a peer to its session, or a reason for none

logger = logging.getLogger(__name__)


class HandshakeLimit(Protocol):
    """Limits the connections that have no session yet."""

    def enter(self, address: str) -> str | None:
        """Count a connection from *address*; if there is no room for it, return the reason, else None."""

    def leave(self, address: str) -> None:
        """Stop counting a connection, which has ended or becomes a session."""


def _network_of(address: str, _number: int) -> str:
    return network(address)


class Handshakes(NamedTuple):
    """How TLS handshakes are made: with which *context*, within *timeout_seconds*, and how many at once.

    *network_of* returns the network that a connection counts for, by its address and a number of its own; the
    *read_pacer* charges it for the time that handshakes and decrypting take.
    """

    context: ssl.SSLContext
    limit: HandshakeLimit | None = None
    timeout_seconds: float = HANDSHAKE_SECONDS
    read_pacer: ReadPacer | None = None
    network_of: Callable[[str, int], str] = _network_of


async def listen(
    accept: Accept,
    host: str,
    port: int,
    *,
    tasks: TaskGroup,
    stack: AsyncExitStack,
    tls: Handshakes | None = None,
) -> int:
    """Serve TCP, or TLS with the handshakes *tls*, and return the port; connections run in *tasks*.

    When *stack* is unwound, the listeners close and every session says goodbye.
    """
    listeners = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
    server = _TcpServer(accept, tls, tasks)
    stack.push_async_callback(server.close)
    for listener in listeners.listeners:
        assert isinstance(listener, SocketListener)
        stack.push_async_callback(listener.aclose)
        tasks.start_soon(server.accept_from, listener)
    return int(listeners.extra(SocketAttribute.local_port))


class _TcpServer:
    def __init__(self, accept: Accept, tls: Handshakes | None, tasks: TaskGroup) -> None:
        self._accept = accept
        self._tls = tls
        self._tasks = tasks
        self._sessions: set[Session] = set()

    async def accept_from(self, listener: SocketListener) -> None:
        while True:
            try:
                stream = await listener.accept()
            except anyio.ClosedResourceError:
                return
            except (OSError, anyio.BrokenResourceError) as error:  # which one depends on the loop
                logger.warning(CANNOT_ACCEPT, error.__cause__ or error)  # anyio's own text is empty
                await anyio.sleep(ACCEPT_RETRY_SECONDS)
            else:
                self._tasks.start_soon(self._serve, stream)

    async def close(self) -> None:
        for session in list(self._sessions):
            if session.closing is None:
                session.goodbye()
        with anyio.move_on_after(2 * LINGER_SECONDS):  # each takes `LINGER_SECONDS` at most
            while self._sessions:
                await anyio.sleep(0.01)

    async def _serve(self, stream: SocketStream) -> None:
        enable_keepalive(stream.extra(SocketAttribute.raw_socket))
        address = str(stream.extra(SocketAttribute.remote_address, ("",))[0])
        try:
            if not address:  # the connection was reset before it was accepted
                return
            turns = input_turns()
            if (wire := await self._handshake(stream, address, turns)) is None:
                return
            session = self._accept(address)
            if isinstance(session, Session):
                self._sessions.add(session)
                try:
                    await serve(session, wire, turns)
                finally:
                    self._sessions.discard(session)
        except Exception:
            logger.exception("a connection failed; the others go on")
        finally:
            await anyio.aclose_forcefully(stream)

    async def _handshake(self, stream: SocketStream, address: str, turns: InputTurns) -> Wire | None:
        if (tls := self._tls) is None:
            return StreamWire(stream, turns)
        if tls.limit is not None and tls.limit.enter(address) is not None:
            return None
        try:
            with anyio.fail_after(tls.timeout_seconds):
                return StreamWire(await TLSStream.wrap(stream, server_side=True, ssl_context=tls.context), turns)
        except DISCONNECTED:
            return None
        finally:
            if tls.limit is not None:
                tls.limit.leave(address)
