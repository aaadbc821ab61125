"""Outgoing connections: the gateway dials them, runs them like any other, and dials again when they end.

A link is a session over TCP or TLS, or a WebSocket on either (`gateway.adapter.OutboundLink`); its adapter decides what
it sends. The delay between two attempts doubles up to `MAX_RETRY_SECONDS` (`gateway.core.backoff`). A connection that
lasted `STABLE_SECONDS` resets the delay.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import structlog
from anyio.abc import ByteStream, SocketAttribute

from gateway.adapter import OutboundLink
from gateway.core.backoff import retry_seconds
from gateway.core.session import Session

from .dialled_websocket import open_websocket
from .input_turns import InputTurns, input_turns
from .portable_shell import DISCONNECTED, HANDSHAKE_SECONDS, StreamWire, Wire, enable_keepalive, serve

FIRST_RETRY_SECONDS = 1.0  # until the second attempt, as in the Arbor relay
MAX_RETRY_SECONDS = 60.0  # between two attempts
STABLE_SECONDS = 10.0  # after which a connection counts as stable

logger = structlog.get_logger("trellis")


class Dialler:
    """Keeps one link connected. *clock* returns ms since 1970."""

    def __init__(self, protocol: str, link: OutboundLink, clock: Callable[[], int]) -> None:
        self.protocol = protocol
        self.link = link
        self._clock = clock
        self._session: Session | None = None
        self._connects = 0
        self._failures = 0  # since the last stable connection
        self._since = clock()
        self._error = ""
        self._stopped = False
        self._scope: anyio.CancelScope | None = None  # while `run` runs
        self._attempt: anyio.CancelScope | None = None  # while it connects or is connected
        self._permitted = True
        self._waiting: anyio.Event | None = None  # for a permission

    @property
    def id(self) -> str:
        """Return the name that distinguishes the link from all others."""
        return f"{self.protocol} {self.link.name}"

    @property
    def is_up(self) -> bool:
        """Whether the link is connected."""
        return self._session is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether another gateway of the cluster holds it."""
        return not self._permitted

    def report(self) -> dict[str, Any]:
        """Return the state of the link, for `GET /v1/stats`."""
        session = self._session
        return {
            "protocol": self.protocol,
            "address": self.link.shown,
            "state": "connected" if session is not None else "elsewhere" if self.is_elsewhere else "waiting",
            "since": self._since,
            "connects": self._connects,
            "failures": self._failures,
            "error": self._error or None,
            **({} if session is None else self.link.report(session)),
        }

    def permit(self, permitted: bool) -> None:
        """Let the link connect; if not *permitted*, as another gateway of the cluster holds it, disconnect and wait."""
        if permitted == self._permitted:
            return
        self._permitted, self._failures, self._since = permitted, 0, self._clock()
        event = "this gateway holds the link now" if permitted else "another member holds the link now"
        logger.info(event, protocol=self.protocol, address=self.link.shown)
        if self._attempt is not None and not permitted:
            self._attempt.cancel()
        if self._waiting is not None and permitted:
            self._waiting.set()

    def stop(self) -> None:
        """Stop dialling; the gateway itself says goodbye to a running session."""
        self._stopped = True
        if self._session is None and self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Dial again and again until `stop` is called."""
        with anyio.CancelScope() as self._scope:
            while not self._stopped:
                while not self._permitted:
                    self._waiting = anyio.Event()
                    await self._waiting.wait()
                started = anyio.current_time()
                with anyio.CancelScope() as self._attempt:
                    await self._connect_once()
                self._attempt = None
                if self._stopped:
                    return
                if not self._permitted:
                    continue
                if anyio.current_time() - started >= STABLE_SECONDS:
                    self._failures = 0
                self._failures += 1
                logger.warning("a link is down", protocol=self.protocol, address=self.link.shown, reason=self._error)
                await anyio.sleep(retry_seconds(self._failures, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS))

    async def _connect_once(self) -> None:
        """Connect once and run the session to its end; errors are kept for the report."""
        turns = input_turns()
        try:
            with anyio.fail_after(HANDSHAKE_SECONDS):
                stream = await self._connect()
                wire = await self._open(stream, turns)
        except DISCONNECTED as error:
            self._error = describe_error(error)
            return
        try:
            await self._serve(stream, wire, turns)
        except* Exception as error:  # a bug in one session must not affect the others, even during shutdown
            logger.exception("a link failed; the others go on", protocol=self.protocol, address=self.link.shown)
            self._error = repr(error)
        finally:
            self._session, self._since = None, self._clock()
            with anyio.CancelScope(shield=True), suppress(*DISCONNECTED):
                await anyio.aclose_forcefully(stream)

    async def _open(self, stream: ByteStream, turns: InputTurns) -> Wire:
        """Return the wire on *stream*, which is connected; open a WebSocket on it if the link has a path."""
        link = self.link
        if link.path is None:
            return StreamWire(stream, turns)
        scheme = "wss" if link.tls else "ws"
        return await open_websocket(stream, f"{scheme}://{_host(link)}:{link.port}{link.path}", turns)

    async def _serve(self, stream: ByteStream, wire: Wire, turns: InputTurns) -> None:
        enable_keepalive(stream.extra(SocketAttribute.raw_socket))
        session = self._session = self.link.open()
        self._since, self._error = self._clock(), ""
        self._connects += 1
        logger.info("a link is up", protocol=self.protocol, address=self.link.shown)
        await serve(session, wire, turns)
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


def _host(link: OutboundLink) -> str:
    """Return the host as it is written in URLs: an IPv6 address stands in brackets."""
    return f"[{link.host}]" if ":" in link.host else link.host


def describe_error(error: BaseException) -> str:
    """Return in a few words why there is no connection; the root cause may be several `__cause__` down."""
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
