"""The client's side of a WebSocket (RFC 6455), for connections that the gateway dials.

The server is trusted with no more than a client would be: what is kept of an unfinished message has the size of its
content, however many frames that came in, and thousands of short frames are read in many turns of the loop.
"""

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

from .input_turns import InputTurns, input_turns
from .portable_shell import DISCONNECTED, StreamWire
from .websocket_parser import MAX_MESSAGE, truncate_reason

PORTION = 512  # bytes that the parser takes at once: 256 frames, which take it 2 ms


class ClientWebSocketWire:
    """A WebSocket that was opened by `open_websocket`, for sessions whose data are whole text frames."""

    unread_seconds = math.inf

    def __init__(self, stream: ByteStream, protocol: ClientProtocol, turns: InputTurns | None = None) -> None:
        self._stream = stream
        self._turns = turns or input_turns()
        self._read_data, self._at = b"", 0  # what was read, and how much of it is parsed
        self._wire = StreamWire(stream)
        self._protocol = protocol
        self._writing = anyio.Lock()  # answers to pings are written beside the session's data
        self._unfinished = bytearray()  # a message that is not complete
        self._messages: deque[bytes] = deque()

    @property
    def more_follows(self) -> bool:
        """Whether more messages have arrived."""
        return bool(self._messages)

    def receive_more(self) -> bytes:
        """Return the next message that has arrived."""
        return self._messages.popleft()

    async def receive(self) -> bytes | None:
        """Return one message; in a binary one, bytes that are not UTF-8 are replaced by U+FFFD."""
        while True:
            self._take_events()
            if not await self._flush():
                return None
            if self._messages:
                return self._messages.popleft()
            if self._protocol.state is not OPEN:
                return None
            with suppress(anyio.EndOfStream):
                await self._read()

    async def send(self, data: list[bytes], /) -> bool:
        """Send a text message for each frame; False if the server reads nothing for too long."""
        try:
            for frame in data:
                self._protocol.send_text(payload(frame))
        except InvalidState as error:  # the server is closing the connection
            raise anyio.ClosedResourceError from error
        return await self._flush()

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame, and wait until the server closes the connection; what it says meanwhile is discarded."""
        if self._protocol.state is OPEN:
            self._protocol.send_close(code, truncate_reason(reason))
        with suppress(*DISCONNECTED):
            await self._flush()
            while True:
                await self._stream.receive()
        await self._stream.aclose()

    async def _read(self) -> None:
        """Parse what arrives next, a portion at a time; raises `DISCONNECTED` errors."""
        try:
            data = await self._stream.receive()
        except anyio.EndOfStream:
            self._protocol.receive_eof()
            raise
        self._read_data, self._at = data, 0
        await self._turns.run(self._parse)
        self._read_data = b""

    def _parse(self) -> bool:
        """Parse a portion of what was read, and take what it was; return whether more of it is left."""
        begin, self._at = self._at, self._at + PORTION
        self._protocol.receive_data(self._read_data[begin : self._at])
        self._take_events()
        return self._at < len(self._read_data)

    def _take_events(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):  # the response to the handshake is an event, too
                self._take(event)

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._unfinished += frame.data
        if frame.fin:
            self._messages.append(self._unfinished.decode(errors="replace").encode())
            self._unfinished.clear()

    async def _flush(self) -> bool:
        async with self._writing:
            data = [each for each in self._protocol.data_to_send() if each]
            return not data or await self._wire.send(data)


async def open_websocket(stream: ByteStream, url: str, turns: InputTurns | None = None) -> ClientWebSocketWire:
    """Open a WebSocket on a connected *stream*, whose input takes *turns*. Raises `OSError` if the server refuses it.

    The stream is closed if that fails, for whatever reason.
    """
    protocol = ClientProtocol(parse_uri(url), max_size=MAX_MESSAGE)
    protocol.send_request(protocol.connect())
    try:
        await stream.send(b"".join(protocol.data_to_send()))
        while protocol.state is CONNECTING:
            try:
                protocol.receive_data(await stream.receive(PORTION))
            except anyio.EndOfStream:
                protocol.receive_eof()
                raise
            if protocol.handshake_exc is not None:
                raise ConnectionRefusedError(f"it is not a WebSocket: {protocol.handshake_exc}")
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
        raise
    return ClientWebSocketWire(stream, protocol, turns)
