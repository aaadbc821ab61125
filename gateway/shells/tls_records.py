"""TLS on asyncio, decrypted a little at a time; what takes long is charged to the network of the peer.

asyncio and uvloop read up to 256 KiB and decrypt all records in it before anybody else has a turn: 40 ms if each record
has one byte. Here `MAX_READ` bytes are read at once, and nothing more in the same turn of the loop if they took long.
`SharedTls` is a subclass of an internal of the standard library: tests/gateway/shells/test_tls_records.py fails if a
new version of Python does not fit.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from collections.abc import Callable
from time import thread_time
from typing import Any

from .turns import CHEAP_SECONDS

MAX_READ = 16 << 10  # bytes that are decrypted at once: 700 records of one byte, which take 2 ms
SHORT_READ = 1 << 10  # bytes that take less than `CHEAP_SECONDS`, which is not measured

_Protocol: Any = sslproto.SSLProtocol  # the types that mypy knows are those of an earlier Python
_ProtocolTransport: Any = getattr(sslproto, "_SSLProtocolTransport")  # noqa: B009

Charge = Callable[[float], float]  # charges seconds of the loop; returns those to wait before more


class _Transport(_ProtocolTransport):  # type: ignore[misc]
    def close(self) -> None:
        """Close it; do nothing if it is closing, where that of the standard library would lose its protocol."""
        if not self.is_closing():
            super().close()


class SharedTls(_Protocol):  # type: ignore[misc]
    """The server's side of TLS for one *protocol*; *waiter* is set when the handshake has ended.

    *charge_handshake* is told how long a step of the handshake took, *charge_records* how long it took to decrypt.
    """

    max_size = MAX_READ

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        waiter: asyncio.Future[None],
        charges: tuple[Charge, Charge],
        **seconds: float,
    ) -> None:
        self._app_transport_created = self._ssl_reading_paused = False  # as the superclass does, for mypy
        super().__init__(loop, protocol, context, waiter, server_side=True, **seconds)
        self._charge_handshake, self._charge_records = charges
        self._pause: asyncio.Handle | None = None  # while nothing is read, because decrypting took long

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        if self._pause is not None:
            self._pause.cancel()
        super().connection_lost(exc)

    def _get_app_transport(self) -> _Transport:
        if not self._app_transport_created:
            self._app_transport, self._app_transport_created = _Transport(self._loop, self), True
        transport: _Transport = super()._get_app_transport()
        return transport

    def _do_handshake(self) -> None:
        begin = thread_time()
        super()._do_handshake()
        self._charge_handshake(thread_time() - begin)

    def _do_read__copied(self) -> None:
        """Decrypt what has arrived and pass it on."""
        begin = thread_time() if self._incoming.pending > SHORT_READ else None
        chunks: list[bytes] = []
        is_open = False
        try:
            while chunk := self._sslobj.read(MAX_READ):
                chunks.append(chunk)
        except (ssl.SSLWantReadError, ssl.SSLSyscallError):
            is_open = True
        if begin is not None and (seconds := thread_time() - begin) > CHEAP_SECONDS:
            self._pause_for(self._charge_records(seconds))
        if chunks:
            self._app_protocol.data_received(b"".join(chunks))
        if not is_open:  # the peer has said that nothing more follows
            self._call_eof_received()
            self._start_shutdown()

    def _pause_for(self, seconds: float) -> None:
        """Read nothing for so many *seconds*, or until the next turn of the loop."""
        transport: Any = self._transport
        if self._pause is not None or transport is None or transport.is_closing():
            return
        if not self._ssl_reading_paused:
            self._ssl_reading_paused = True
            transport.pause_reading()
        self._pause = self._loop.call_later(seconds, self._read_on) if seconds else self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._pause = None
        if self._transport is not None and not self._transport.is_closing():
            self._control_ssl_reading()

    def _control_ssl_reading(self) -> None:
        if self._pause is None:
            super()._control_ssl_reading()


async def accept_tls(
    peer: Any, protocol: asyncio.Protocol, context: ssl.SSLContext, charges: tuple[Charge, Charge], **seconds: float
) -> None:
    """Make the handshake with the socket *peer*, and run *protocol*; raise what ends the handshake."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()
    tls = SharedTls(loop, protocol, context, waiter, charges, **seconds)
    transport, _ = await loop.connect_accepted_socket(lambda: tls, peer)
    try:
        await waiter
    except BaseException:
        transport.abort()
        raise
