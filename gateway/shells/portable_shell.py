"""The portable shell: runs any session over any wire, on asyncio and trio alike.

Each connection has three tasks and a few events, which is plain and slow. `gateway.shells.fast_shell` fulfils the same
contract (see `gateway.core.session`) without them. This file also has what both shells share: the limits, and
`run_websocket`, which chooses between them.
"""

from __future__ import annotations

import math
import socket
from contextlib import suppress
from typing import Protocol

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from anyio.streams.tls import TLSStream
from starlette.websockets import WebSocket

from gateway.core.frames import payload
from gateway.core.outbox import LOW_WATER, Close
from gateway.core.session import Session

from .input_turns import InputTurns, input_turns
from .websocket_parser import truncate_reason

LINGER_SECONDS = 1.0  # for the last data to be written and read; then the connection is aborted
HANDSHAKE_SECONDS = 10.0  # for everything that precedes a session: the TLS handshake, the head of a request
STALLED_SECONDS = 60.0  # without the peer reading any of what was written; then the connection ends
UNREAD_SECONDS = 5.0  # that a message of an ASGI server may wait while the session is saturated; see `_Pump._read`

# The kernel detects half-open connections: it probes after 60 s of silence and gives up 60 s later.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 3))

# An ASGI extension: the server can run sessions (see `uvicorn_websocket.FastWebSocket`).
SESSION_EXTENSION = "trellis.session"

DISCONNECTED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Wire(Protocol):
    """Carries the bytes of a session. It raises `DISCONNECTED` errors; any other exception is a bug."""

    @property
    def unread_seconds(self) -> float:
        """Return the seconds for which a saturated session may leave input unread."""

    @property
    def more_follows(self) -> bool:
        """Whether `receive_more` can return more of what arrived together."""

    async def receive(self) -> bytes | None:
        """Return what arrived, or None at the end of the stream."""

    def receive_more(self) -> bytes:
        """Return the next of what arrived together; only called if `more_follows`."""

    async def send(self, data: list[bytes], /) -> bool:
        """Write what `Session.data_to_send` returned, in order; return False if the peer reads nothing for too long."""

    async def close(self, code: int, reason: str) -> None:
        """Announce the end and wait for the peer to acknowledge it; the caller sets the time limit."""


async def serve(session: Session, wire: Wire, turns: InputTurns | None = None) -> None:
    """Run *session* over *wire*, whose input takes these *turns*, until either side hangs up."""
    await _Pump(session, wire, turns or input_turns()).run()


class _Pump:
    def __init__(self, session: Session, wire: Wire, turns: InputTurns) -> None:
        self._session = session
        self._wire = wire
        self._turns = turns
        self._arrived = b""  # what is handled next
        self._handled = 0  # bytes since the last pause
        self._ended = False
        self._woken = anyio.Event()
        self._drained = anyio.Event()  # data was taken from the session: there may be room again
        self._ending = anyio.Event()  # the connection ends once what is queued is written
        self._written = anyio.Event()

    async def run(self) -> None:
        self._session.wake = self._wake
        self._session.blocked = False
        if (read_pacer := self._session.bus.read_pacer) is not None:
            read_pacer.budget.enter(self._session)
        deadline = math.inf
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read)
                tasks.start_soon(self._write)
                self._wake()
                await self._ending.wait()
                deadline = anyio.current_time() + LINGER_SECONDS
                with anyio.CancelScope(deadline=deadline):
                    await self._written.wait()
                self._end()  # not after the tasks: there are ASGI servers in which `send` cannot be cancelled
                tasks.cancel_scope.cancel()
        finally:
            self._end()
            close = self._session.closing or Close(1001, "going away")
            deadline = min(deadline, anyio.current_time() + LINGER_SECONDS)
            with anyio.CancelScope(deadline=deadline, shield=True), suppress(*DISCONNECTED):
                await self._wire.close(*close)

    def _wake(self) -> None:
        self._woken.set()
        if self._session.closing is not None:
            self._ending.set()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            if (read_pacer := self._session.bus.read_pacer) is not None:
                read_pacer.budget.leave(self._session)
                read_pacer.connection_closed(self._session)
            self._session.receive_eof()

    async def _read(self) -> None:
        session = self._session
        if session.bus.read_pacer is not None:
            await anyio.sleep(session.bus.read_pacer.connection_opened(session))
        while not self._ending.is_set():
            if not session.ask_to_read():
                with anyio.move_on_after(self._wire.unread_seconds) as waiting:
                    await self._drained.wait()
                if not waiting.cancelled_caught:
                    continue  # otherwise the session keeps one message for later
            try:
                data = await self._wire.receive()
            except DISCONNECTED:
                data = None
            if data is None:
                break
            self._arrived, self._handled = data, 0
            await self._turns.run(self._handle)
            seconds = self._turns.take_seconds()  # with those of the wire, which parses in the same turns
            if session.bus.read_pacer is not None:  # this lets others have their turn, too
                await anyio.sleep(session.bus.read_pacer.record_read(session, self._handled, seconds))
        self._ending.set()
        self._woken.set()

    def _handle(self) -> bool:
        """Handle a piece of what arrived; return whether the next can be handled too."""
        if self._ended:
            return False
        session, wire = self._session, self._wire
        session.more_follows = wire.more_follows
        self._handled += len(self._arrived)
        session.receive_data(self._arrived)
        if not (wire.more_follows and session.penalty is None and session.ask_to_read()) or self._ending.is_set():
            return False
        self._arrived = wire.receive_more()
        return True

    async def _write(self) -> None:
        session = self._session
        while True:
            self._woken = anyio.Event()
            data = session.data_to_send()
            self._drained.set()
            self._drained = anyio.Event()
            try:
                if data:
                    session.blocked = True
                    if not await self._wire.send(data):
                        session.overflow()
                        break
                    session.blocked = False
            except DISCONNECTED:
                break
            if session.has_more:
                await checkpoint()
            elif self._ending.is_set() and not (session.closing is None and session.unfinished):
                break
            else:
                await self._woken.wait()
        self._ending.set()
        self._written.set()


class StreamWire:
    """A TCP or TLS connection.

    What arrived is handed over in portions, so that thousands of short lines are handled in many turns of the loop.
    """

    unread_seconds = math.inf

    def __init__(self, stream: ByteStream, turns: InputTurns | None = None) -> None:
        self._stream = stream
        self._turns = turns or input_turns()
        self._arrived, self._at = b"", 0

    @property
    def more_follows(self) -> bool:
        """Whether a part of what was read is left."""
        return self._at < len(self._arrived)

    async def receive(self) -> bytes | None:
        """Return the next bytes, however they were segmented, at most `PORTION`."""
        if not self.more_follows:
            self._arrived, self._at = await self._turns.read(self._stream), 0
        return self.receive_more()

    def receive_more(self) -> bytes:
        """Return the next portion of what was read."""
        begin, self._at = self._at, self._at + self._turns.portion
        return self._arrived[begin : self._at]

    async def send(self, data: list[bytes], /) -> bool:
        """Write *data* joined, in pieces of `LOW_WATER` bytes; False if one takes more than `STALLED_SECONDS`."""
        joined = b"".join(data)
        for at in range(0, len(joined), LOW_WATER):
            with anyio.move_on_after(STALLED_SECONDS) as sending:
                await self._stream.send(joined[at : at + LOW_WATER])
            if sending.cancelled_caught:
                return False
        return True

    async def close(self, code: int, reason: str) -> None:  # noqa: ARG002  # TCP carries neither
        """Half-close, then read until the peer closes; closing with unread input would reset the connection."""
        if not isinstance(self._stream, TLSStream):  # TLS has no half-close
            with suppress(*DISCONNECTED):
                await _send_eof(self._stream)
                while True:
                    await self._stream.receive()
        await self._stream.aclose()


async def _send_eof(stream: ByteStream) -> None:
    try:
        await stream.send_eof()
    except RuntimeError as error:  # uvloop raises this if the transport is closed already
        raise anyio.BrokenResourceError from error


class WebSocketWire:
    """An accepted WebSocket of any ASGI server, for sessions whose data are whole text frames.

    Its messages are read even while the session is saturated, if slowly. hypercorn queues ten; if the peer vanishes
    then, `send` waits for room for the disconnection in that queue, and reading would wait for `send`, for ever.
    """

    unread_seconds = UNREAD_SECONDS
    more_follows = False

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._gone = False

    async def receive(self) -> bytes | None:
        """Return one message; in a binary one, bytes that are not UTF-8 are replaced by U+FFFD."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._gone = True
            return None
        text = message.get("text")
        if text is None:
            text = message["bytes"].decode(errors="replace")
        return bytes(text.encode(errors="replace"))

    def receive_more(self) -> bytes:
        """Not called: messages arrive one at a time."""
        raise NotImplementedError

    async def send(self, data: list[bytes], /) -> bool:
        """Send a text message for each frame, however long that takes; ASGI cannot write several at once."""
        for text in [payload(frame).decode() for frame in data]:
            await checkpoint()  # some servers never yield in `send`, and would not notice that the peer is gone
            if self._gone:  # some servers report no error
                raise anyio.ClosedResourceError
            try:
                await self._websocket.send_text(text)  # without a time limit: in some servers it cannot be cancelled
            except Exception as error:  # if the peer is gone, servers raise errors of their own and of their loop
                raise anyio.BrokenResourceError from error
        return True

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for that of the peer."""
        with suppress(Exception):  # the peer may have closed first; see `send`
            await self._websocket.close(code, truncate_reason(reason))
            while await self.receive() is not None:
                pass


async def run_websocket(websocket: WebSocket, session: Session) -> None:
    """Run *session* over the accepted *websocket*, by the fast shell if the server offers `SESSION_EXTENSION`.

    With the extension it returns at once, and so should the route: the fast shell owns the connection from then on,
    and an idle peer costs neither a task nor a stack of middleware. Without it, it returns when the session has ended.
    """
    attach = websocket.scope.get("extensions", {}).get(SESSION_EXTENSION)
    if attach is not None:
        attach(session)
    else:
        await serve(session, WebSocketWire(websocket))


def enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel detect a peer that is gone (TCP keepalive)."""
    with suppress(OSError):  # the connection may be lost already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
