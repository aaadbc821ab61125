"""Connections that the gateway itself wants: dialled, run like any other, and dialled again when they end.

A link is a session over a TCP or TLS wire (`gateway.adapter.Link`); what it says is its adapter's business. How long
it waits between two tries doubles up to `MAX_RETRY_SECONDS`, each time by chance a bit less, so that a hundred gateways do not
come back to one all at once. A connection that lasted `STABLE_SECONDS` seconds was a good one: the next pause is short again.
"""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import structlog
from anyio.abc import ByteStream, SocketAttribute

from gateway.adapter import Link
from gateway.core.session import Session

from .serve import DISCONNECTED, HANDSHAKE_SECONDS, StreamWire, enable_keepalive, serve

FIRST_RETRY_SECONDS = 1.0  # seconds until the second try, as the Arbor relay has it
MAX_RETRY_SECONDS = 60.0  # between two tries
STABLE_SECONDS = 10.0  # seconds after which a connection was a good one

logger = structlog.get_logger("trellis")


class Dialler:
    """Keeps one link up. *clock* gives ms since 1970."""

    def __init__(self, protocol: str, link: Link, clock: Callable[[], int]) -> None:
        self.protocol = protocol
        self.link = link
        self._clock = clock
        self._session: Session | None = None
        self._connects = 0
        self._failures = 0  # since the last good connection
        self._since = clock()
        self._error = ""
        self._stopped = False
        self._scope: anyio.CancelScope | None = None  # while it runs

    def report(self) -> dict[str, Any]:
        """What becomes of the link, for `GET /v1/stats`."""
        session = self._session
        return {
            "protocol": self.protocol,
            "address": self.link.name,
            "state": "waiting" if session is None else "connected",
            "since": self._since,
            "connects": self._connects,
            "failures": self._failures,
            "error": self._error or None,
            **({} if session is None else self.link.report(session)),
        }

    def stop(self) -> None:
        """Dial no more; a session that runs is told by the gateway."""
        self._stopped = True
        if self._session is None and self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Dial until told to stop."""
        with anyio.CancelScope() as self._scope:
            while not self._stopped:
                started = anyio.current_time()
                await self._connect_once()
                if self._stopped:
                    return
                if anyio.current_time() - started >= STABLE_SECONDS:
                    self._failures = 0
                self._failures += 1
                logger.warning("a link is down", protocol=self.protocol, address=self.link.name, reason=self._error)
                await anyio.sleep(retry_seconds(self._failures))

    async def _connect_once(self) -> None:
        """One connection, from its beginning to its end, whatever that is."""
        try:
            with anyio.fail_after(HANDSHAKE_SECONDS):
                stream = await self._connect()
        except (*DISCONNECTED, TimeoutError, ssl.SSLError, ssl.CertificateError) as error:
            self._error = describe_error(error)
            return
        try:
            await self._serve(stream)
        except* Exception as error:  # a bug in one session must not stop the others, also while those are told to stop
            logger.exception("a link failed; the others go on", address=self.link.name)
            self._error = repr(error)
        finally:
            self._session, self._since = None, self._clock()
            with anyio.CancelScope(shield=True), suppress(*DISCONNECTED):
                await anyio.aclose_forcefully(stream)

    async def _serve(self, stream: ByteStream) -> None:
        enable_keepalive(stream.extra(SocketAttribute.raw_socket))
        session = self._session = self.link.open()
        self._since, self._error = self._clock(), ""
        self._connects += 1
        logger.info("a link is up", protocol=self.protocol, address=self.link.name)
        await serve(session, StreamWire(stream))
        self._error = "the other side hung up" if session.closing is None else session.closing.reason

    async def _connect(self) -> ByteStream:
        link = self.link
        if not link.tls:
            return await anyio.connect_tcp(link.host, link.port)
        context = ssl.create_default_context(cafile=link.authorities)
        if not link.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return await anyio.connect_tcp(
            link.host, link.port, tls=True, ssl_context=context, tls_hostname=link.host, tls_standard_compatible=False
        )


def retry_seconds(failures: int) -> float:
    """Seconds until the next try after so many *failures* in a row."""
    longest: float = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16), MAX_RETRY_SECONDS)
    return longest * random.uniform(0.5, 1.0)


def describe_error(error: BaseException) -> str:
    """Why there is no connection, in a few words; what really happened may be several causes down."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return describe_error(error.exceptions[0])
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
