"""The client's side of a WebSocket (RFC 6455), for connections that the gateway dials."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress

import anyio
from anyio.abc import ByteStream
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING, OPEN
from websockets.uri import parse_uri

from gateway.core.frames import payload

from .serve import DISCONNECTED, StreamWire
from .websocket import MAX_MESSAGE, truncate_reason


class ClientWebSocketWire:
    """A WebSocket that was opened by `open_websocket`, for sessions whose data are whole text frames."""

    unread_seconds = math.inf

    def __init__(self, stream: ByteStream, protocol: ClientProtocol) -> None:
        self._stream = stream
        self._wire = StreamWire(stream)
        self._protocol = protocol
        self._writing = anyio.Lock()  # answers to pings are written beside the session's data
        self._parts: list[bytes] = []  # of a message that is not complete
        self._messages: deque[bytes] = deque()

    async def receive(self) -> bytes | None:
        """Return one message; in a binary one, bytes that are not UTF-8 are replaced by U+FFFD."""
        while True:
            for event in self._protocol.events_received():
                if isinstance(event, Frame):  # the response to the handshake is an event, too
                    self._take(event)
            await self._flush()
            if self._messages:
                return self._messages.popleft()
            if self._protocol.state is not OPEN:
                return None
            with suppress(anyio.EndOfStream):
                await read(self._stream, self._protocol)

    async def send(self, data: list[bytes], /) -> None:
        """Send a text message for each frame."""
        try:
            for frame in data:
                self._protocol.send_text(payload(frame))
        except InvalidState as error:  # the server is closing the connection
            raise anyio.ClosedResourceError from error
        await self._flush()

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame, and wait until the server closes the connection."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(code, truncate_reason(reason))
        with suppress(*DISCONNECTED):
            await self._flush()
            while True:
                await read(self._stream, self._protocol)
        await self._stream.aclose()

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            self._messages.append(b"".join(self._parts).decode(errors="replace").encode())
            self._parts.clear()

    async def _flush(self) -> None:
        async with self._writing:
            if data := [each for each in self._protocol.data_to_send() if each]:
                await self._wire.send(data)


async def open_websocket(stream: ByteStream, url: str) -> ClientWebSocketWire:
    """Open a WebSocket on a *stream* that is connected; raises `OSError` if the server refuses it.

    The stream is closed if that fails, for whatever reason.
    """
    protocol = ClientProtocol(parse_uri(url), max_size=MAX_MESSAGE)
    protocol.send_request(protocol.connect())
    try:
        await stream.send(b"".join(protocol.data_to_send()))
        while protocol.state is CONNECTING:
            await read(stream, protocol)
            if protocol.handshake_exc is not None:
                raise ConnectionRefusedError(f"it is no WebSocket: {protocol.handshake_exc}")
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        raise
    return ClientWebSocketWire(stream, protocol)


async def read(stream: ByteStream, protocol: ClientProtocol) -> None:
    """Give *protocol* what arrives next; raises `DISCONNECTED` errors."""
    try:
        protocol.receive_data(await stream.receive())
    except anyio.EndOfStream:
        protocol.receive_eof()
        raise
