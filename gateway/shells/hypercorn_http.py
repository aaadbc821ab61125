"""hypercorn's HTTP connections, extended by limits for which it has one setting, `keep_alive_timeout`.

`FastHttp` in `gateway.shells.uvicorn_http` does the same for uvicorn: `Admission` counts a connection, which is dropped
if it sends no complete request within `limits.handshake_seconds`. After a request it may be idle for
`limits.keep_alive_seconds`, but is closed earlier if others need its place. This is a subclass of internals: the
version is pinned, and tests/gateway/http/test_persistent.py fails if a new one does not fit.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any

import h11
import hypercorn.protocol
import hypercorn.trio.run
import structlog
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol, H11WSConnection
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer

from gateway.core.networks import network
from gateway.core.outbox import LOW_WATER
from gateway.http.persistent import raw_response
from gateway.http.problems import Problem

from .http_gateway import MAX_DISCARDED, RETRY_HEADERS, HttpGateway
from .portable_shell import LINGER_SECONDS, STALLED_SECONDS

logger = structlog.get_logger("trellis")

NOT_READABLE = (trio.BusyResourceError, AttributeError)  # another task reads; TLS has no half-close
DISCONNECTED = (trio.ClosedResourceError, trio.BrokenResourceError)
ENDING = trio.BusyResourceError  # another task is closing the connection

_numbers = count()  # of connections


class Http1(H11Protocol):
    """HTTP/1.1 in which nobody can change to HTTP/2, past the rules of a proxy in front of the gateway.

    A client that begins with HTTP/2, or agreed on it by TLS, speaks it.
    """

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore `Upgrade: h2c` (RFC 9110, section 7.8, lets a server do so; RFC 9113 took it away)."""
        if event.method == b"PRI":
            await super()._check_protocol(event)


class HypercornConnection(TCPServer):
    """A connection that *gateway* has to admit, with the time limits of its admission."""

    gateway: HttpGateway
    network = ""  # of the client, while the connection is counted
    _idle = True  # no request is under way
    _had_request = False  # at least one request was complete
    _request_begun = False  # the next one has begun
    _disconnected = False  # the client is gone; hypercorn would wait for its next request

    async def run(self) -> None:
        """Serve the connection, if there is room."""
        if (address := _address(self.stream)) is None:
            await trio.aclose_forcefully(self.stream)
            return
        address = self.gateway.proxies.connection(address, next(_numbers))
        if (reason := self.gateway.admission.enter(address)) is not None:
            await self._refuse(reason)
        else:
            self.network = network(address)
            try:
                await super().run()
            except* Exception:  # hypercorn would stop serving everybody
                logger.exception("a connection failed; the others go on")
            finally:
                self._leave()

    async def _refuse(self, reason: str) -> None:
        """Answer that there is no room; before a TLS handshake just close."""
        try:
            if not isinstance(self.stream, trio.SSLStream) and self.gateway.admission.begin_refusal():
                try:
                    with trio.move_on_after(LINGER_SECONDS), suppress(*DISCONNECTED):
                        await self.stream.send_all(raw_response(Problem("too-many-connections", reason, RETRY_HEADERS)))
                    await self._close()
                finally:
                    self.gateway.admission.end_refusal()
        finally:
            await trio.aclose_forcefully(self.stream)

    def close_idle(self) -> None:
        """Close this idle connection to make room for another."""
        self._leave()
        self._task_group.spawn(self._initiate_server_close)

    def _leave(self) -> None:
        if self.network:
            self.gateway.admission.mark_busy(self)
            self.gateway.admission.leave(self.network)
            self.network = ""

    async def protocol_send(self, event: Event) -> None:
        """Write *event*, and note whether a request is under way."""
        if isinstance(event, Updated):
            self._idle, self._had_request, self._request_begun = event.idle, True, False
            if event.idle and self.network:
                self.gateway.admission.mark_idle(self)
            else:
                self.gateway.admission.mark_busy(self)
        if isinstance(event, RawData):
            await self._send(event.data)
        else:
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        """Write *data* in pieces, each within `STALLED_SECONDS`; abort the connection otherwise."""
        async with self.send_lock:
            for at in range(0, len(data), LOW_WATER):
                with trio.move_on_after(STALLED_SECONDS, shield=True) as sending, suppress(*DISCONNECTED, ENDING):
                    await self.stream.send_all(data[at : at + LOW_WATER])
                    continue
                if sending.cancelled_caught:
                    await trio.aclose_forcefully(self.stream)
                await self.protocol.handle(Closed())
                return

    async def _close(self) -> None:
        """Close once the client has closed, or soon: closing with unread input would reset the connection."""
        self.gateway.admission.mark_busy(self)  # `close_idle` needs the task group, which has ended
        discarded = 0
        with trio.move_on_after(LINGER_SECONDS), suppress(*DISCONNECTED, *NOT_READABLE):
            await self.stream.send_eof()
            while discarded < MAX_DISCARDED and (data := await self.stream.receive_some(MAX_RECV)):
                discarded += len(data)
        await super()._close()

    async def _read_data(self) -> None:
        while True:
            try:
                data = bytes(await self.stream.receive_some(MAX_RECV))
            except (*DISCONNECTED, ENDING):
                break
            if data:
                self.gateway.admission.mark_busy(self)
            await self.protocol.handle(RawData(data))
            if not data:
                break
            await self._note_progress()
        self._disconnected = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _note_progress(self) -> None:
        """Note what the input changed: a WebSocket handshake, or the start of another request."""
        connection = self.protocol.protocol.connection
        if isinstance(connection, H11WSConnection):
            self._leave()  # it becomes a session, which is counted when it is admitted
        elif isinstance(connection, h11.Connection) and self._idle and self._had_request and not self._request_begun:
            self._request_begun = bool(connection.trailing_data[0])
            if self._request_begun:
                await self.idle_task.restart(self._task_group, self._idle_timeout)

    async def _idle_timeout(self) -> None:
        if self._disconnected:
            return
        limits = self.gateway.admission.limits
        waits = self._had_request and not self._request_begun
        with trio.move_on_after(limits.keep_alive_seconds if waits else limits.handshake_seconds):
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


def _address(stream: Any) -> str | None:
    """Return the address of the client of *stream*, TCP or TLS; None if it is gone."""
    try:
        return str(getattr(stream, "transport_stream", stream).socket.getpeername()[0])
    except OSError:
        return None


def patch_connections(gateway: HttpGateway) -> None:
    """Make hypercorn use `HypercornConnection` in this process."""
    made: Any = type("HypercornConnection", (HypercornConnection,), {"gateway": gateway})
    protocols: Any = hypercorn.protocol
    protocols.H11Protocol = Http1  # the one place where hypercorn chooses it
    hypercorn.trio.run.TCPServer = made  # type: ignore[attr-defined]  # the one place where hypercorn chooses it
