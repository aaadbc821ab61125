"""Accepts TLS connections: each is counted once it is accepted, and its handshake has a time limit.

A server of asyncio reports a connection only after the handshake, so handshakes that never finish could not be
counted. Here a connection is counted first; its protocol takes over once the handshake is done.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from .serve import LINGER_SECONDS
from .tcp_server import ACCEPT_RETRY_SECONDS, Handshakes

HANDSHAKE_ERRORS = (OSError, asyncio.TimeoutError)  # `ssl.SSLError` is an OSError

logger = logging.getLogger(__name__)


class TlsServer:
    """Accepts connections on *listener*; *protocol_factory* makes a protocol for each that ends its handshake in time.

    *handshakes* has the TLS context, the time limit, and the limit to the handshakes under way.
    """

    def __init__(
        self, listener: socket.socket, handshakes: Handshakes, protocol_factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._context, self._handshake_limit, self._seconds = handshakes
        self._protocol_factory = protocol_factory
        self._handshakes: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting, and abort the handshakes under way."""
        tasks = [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                peer, address = await self._loop.sock_accept(self._listener)
            except OSError as error:
                logger.warning("cannot accept: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            if self._handshake_limit is not None and self._handshake_limit.enter(address[0]) is not None:
                peer.close()  # before the handshake no reason can be sent
                continue
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it only for its own servers
            task = self._loop.create_task(self._handshake(peer, address[0]))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, peer: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol_factory,
                peer,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=LINGER_SECONDS,
            )
        except HANDSHAKE_ERRORS:
            with suppress(OSError):
                peer.close()
        finally:
            if self._handshake_limit is not None:
                self._handshake_limit.leave(address)
