"""Accepts TLS connections: each is counted once it is accepted, and its handshake has a time limit.

A server of asyncio reports a connection only after the handshake, so handshakes that never finish could not be
counted. Here a connection is counted first; its protocol takes over once the handshake is done. A network whose
handshakes and requests have used its share of the loop makes its handshakes one after another, as it pays its debt.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from weakref import WeakValueDictionary

from .portable_shell import LINGER_SECONDS
from .tcp_server import ACCEPT_RETRY_SECONDS, CANNOT_ACCEPT, Handshakes
from .tls_records import Charge, accept_tls

HANDSHAKE_LOOP_SECONDS = 0.0003  # of the loop that a handshake takes at least; the rest is charged when it is done

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
        self._context, self._timeout_seconds = handshakes.context, handshakes.timeout_seconds
        self._handshake_limit = handshakes.limit
        self._network_of, self._read_pacer = handshakes.network_of, handshakes.read_pacer
        self._numbers = count()
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by network
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
                logger.warning(CANNOT_ACCEPT, error)
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
        network = self._network_of(address, next(self._numbers))
        try:
            await self._wait_for_turn(network)
            await accept_tls(
                peer,
                self._protocol_factory(),
                self._context,
                self._charges(network),
                ssl_handshake_timeout=self._timeout_seconds,
                ssl_shutdown_timeout=LINGER_SECONDS,
            )
        except OSError:  # also a TimeoutError or an SSLError
            with suppress(OSError):
                peer.close()
        finally:
            if self._handshake_limit is not None:
                self._handshake_limit.leave(address)

    async def _wait_for_turn(self, network: str) -> None:
        """Wait until *network* may use the loop; its handshakes wait in a queue, so that only the first has a timer."""
        charge, _ = self._charges(network)
        if charge(0.0) <= 0:
            return
        queue = self._queues.get(network) or self._queues.setdefault(network, asyncio.Lock())
        async with queue:
            while (wait := charge(0.0)) > 0:
                await asyncio.sleep(wait)
            charge(HANDSHAKE_LOOP_SECONDS)

    def _charges(self, network: str) -> tuple[Charge, Charge]:
        """How *network* is charged for handshakes, and for long reads."""
        if (pacer := self._read_pacer) is None:
            return _charge_nothing, _charge_nothing
        return partial(pacer.charge_network, network), partial(pacer.charge_records, network)


def _charge_nothing(_seconds: float) -> float:
    return 0.0
