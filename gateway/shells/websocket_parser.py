"""Parses what a WebSocket client sends (RFC 6455, section 5): bytes in, whole messages and control frames out.

`Reader.feed` takes the bytes however they were segmented. It never raises: a violation of the protocol sets
`Reader.failure`, after the frames before it; invalid UTF-8 does so at its first bad byte, even if the rest of the frame
has not arrived. What is kept of an unfinished frame or message is limited to *max_size* bytes, and each byte is
examined a bounded number of times, even if they arrive one by one.
"""

from __future__ import annotations

import codecs

from websockets.speedups import apply_mask

from gateway.core.errors import ProtocolError
from gateway.core.outbox import Close

# Bytes of one WebSocket message, on every server; each protocol has its own, smaller limits.
MAX_MESSAGE = 1 << 20

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPCODES = (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)

_FIN, _RESERVED, _OPCODE, _MASK = 0x80, 0x70, 0x0F, 0x80
_WHOLE_TEXT = _FIN | TEXT
_HEAD_SIZES = {126: 8, 127: 14}  # bytes before the payload, by the length field of the second byte; otherwise 6
_MAX_CONTROL = 125

Frame = tuple[int, bytes]

_Utf8 = codecs.getincrementaldecoder("utf-8")


class _Violation(ProtocolError):
    """The client violated the protocol; *close* is sent to it."""

    def __init__(self, code: int, reason: str) -> None:
        self.close = Close(code, reason)


class Reader:
    """Reads what one client sends after the handshake; messages longer than *max_size* bytes are a failure."""

    __slots__ = ("_checked", "_lookahead", "_max_size", "_message", "_need", "_rest", "_utf8", "failure")

    def __init__(self, max_size: int = MAX_MESSAGE) -> None:
        self.failure: Close | None = None
        self._max_size = max_size
        self._rest = bytearray()  # an unfinished frame
        self._need = 0  # bytes needed before parsing can go on
        self._checked = 0  # bytes of the unfinished frame that were checked already
        self._lookahead: codecs.IncrementalDecoder | None = None  # where those are text
        self._message: bytearray | None = None  # a fragmented message that is not finished
        self._utf8: codecs.IncrementalDecoder | None = None  # where that is text

    @property
    def held_size(self) -> int:
        """Return how many bytes of an unfinished message are kept."""
        return len(self._rest) + len(self._message or b"")

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes, as (opcode, payload); not to be called after a `CLOSE` or a failure.

        A message becomes one `TEXT`, however it was fragmented. So does a binary message, in which bytes that are not
        UTF-8 are replaced by U+FFFD.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                self._look_ahead()
                return []
            data = bytes(self._rest)
            self._drop_rest()
        frames: list[Frame] = []
        try:
            end = self._read(data, frames)
        except _Violation as error:
            self.failure = error.close
        else:
            if end < len(data):
                self._rest += data[end:]
                self._look_ahead()
        return frames

    def _look_ahead(self) -> None:
        """Refuse an unfinished frame as soon as its text cannot become UTF-8 any more (RFC 6455, section 8.1)."""
        rest = self._rest
        start = _HEAD_SIZES.get(rest[1] & ~_MASK, 6) if len(rest) > 1 else 6
        if len(rest) <= start:
            return
        if not self._checked:
            self._checked, self._lookahead = start, self._decoder(rest[0] & _OPCODE)
        if self._lookahead is not None:
            turn = (self._checked - start) % 4
            mask = rest[start - 4 + turn : start] + rest[start - 4 : start - 4 + turn]
            try:
                _decode(self._lookahead, apply_mask(rest[self._checked :], mask), final=False)
            except _Violation as error:
                self.failure = error.close
                self._drop_rest()
                return
        self._checked = len(rest)

    def _decoder(self, opcode: int) -> codecs.IncrementalDecoder | None:
        """Return a decoder for the text of the unfinished frame that leaves the decoder of the message unchanged."""
        if opcode == TEXT:
            return _Utf8()
        if opcode != CONTINUATION or self._utf8 is None:
            return None
        copy = _Utf8()
        copy.setstate(self._utf8.getstate())
        return copy

    def _drop_rest(self) -> None:
        self._rest.clear()
        self._checked, self._lookahead = 0, None

    def _read(self, data: bytes, frames: list[Frame]) -> int:
        """Append the frames in *data* to *frames* and return where the first unfinished one begins."""
        begin, end = 0, len(data)
        while end - begin >= 2:
            first, size = data[begin], data[begin + 1] - _MASK
            if size < 0:
                raise _Violation(1002, "a client masks its frames")
            start = begin + 6
            if size > _MAX_CONTROL:
                start += 2 if size == 126 else 8
                if start > end:
                    self._need = start - begin
                    return begin
                size = int.from_bytes(data[begin + 2 : start - 4], "big")
            if first != _WHOLE_TEXT or size > self._max_size or self._message is not None:
                self._check(first, size)
            stop = start + size
            if stop > end:
                self._need = stop - begin
                return begin
            payload = apply_mask(data[start:stop], data[start - 4 : start])
            begin = stop
            if first == _WHOLE_TEXT:  # nearly always
                frames.append((TEXT, payload if payload.isascii() else _checked_text(payload)))
                continue
            self._add_frame(first, payload, frames)
            if first & _OPCODE == CLOSE:
                return end  # whatever comes after it
        self._need = 2
        return begin

    def _check(self, first: int, size: int) -> None:
        opcode = first & _OPCODE
        if first & _RESERVED or opcode not in OPCODES:
            raise _Violation(1002, "reserved bits or opcode")
        if opcode >= CLOSE:
            if size > _MAX_CONTROL or not first & _FIN:
                raise _Violation(1002, "a control frame is short and whole")
        elif (opcode == CONTINUATION) != (self._message is not None):
            raise _Violation(1002, "a fragmented message continues until it is finished")
        elif size + len(self._message or b"") > self._max_size:
            raise _Violation(1009, f"a message has at most {self._max_size} bytes")

    def _add_frame(self, first: int, payload: bytes, frames: list[Frame]) -> None:
        opcode, final = first & _OPCODE, bool(first & _FIN)
        if opcode >= CLOSE:
            if opcode == CLOSE:
                _check_close(payload)
            frames.append((opcode, payload))
        elif final and opcode != CONTINUATION:
            frames.append((TEXT, _with_replacements(payload)))  # a binary one
        elif self._assemble(opcode, payload, final):
            assert self._message is not None
            message = bytes(self._message)
            frames.append((TEXT, message if self._utf8 is not None else _with_replacements(message)))
            self._message = self._utf8 = None

    def _assemble(self, opcode: int, payload: bytes, final: bool) -> bool:
        """Keep a fragment; invalid text is refused at once (RFC 6455, section 8.1), not at the message's end."""
        if self._message is None:
            self._message = bytearray()
            self._utf8 = _Utf8() if opcode == TEXT else None
        self._message += payload
        if self._utf8 is not None:
            _decode(self._utf8, payload, final)
        return final


def _decode(utf8: codecs.IncrementalDecoder, payload: bytes, final: bool) -> None:
    """Raise a violation at the first byte of *payload*, the next bytes of a text, that no UTF-8 text can contain."""
    begun = utf8.getstate()[0]
    if payload.isascii() and not begun:
        return  # nearly always
    try:
        utf8.decode(payload, final)
    except UnicodeDecodeError:
        raise _not_utf8() from None
    begun = utf8.getstate()[0]
    if begun[:1] == b"\xed" and begun[1:] >= b"\xa0":  # a surrogate; the decoder would wait for its third byte
        raise _not_utf8()


def _checked_text(payload: bytes) -> bytes:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise _not_utf8() from None
    return payload


def _not_utf8() -> _Violation:
    return _Violation(1007, "a text message is UTF-8")


def _with_replacements(payload: bytes) -> bytes:
    return payload if payload.isascii() else payload.decode(errors="replace").encode()


def _check_close(payload: bytes) -> None:
    """Check a close frame (RFC 6455, sections 5.5.1 and 7.4); codes as registered with IANA."""
    if not payload:
        return
    _checked_text(payload[2:])
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise _Violation(1002, "no such close code")


def control_frame(opcode: int, payload: bytes) -> bytes:
    """Return the frame of the server for a control *opcode*; *payload* has at most 125 bytes."""
    return bytes((_FIN | opcode, len(payload))) + payload


def close_frame(code: int, reason: str) -> bytes:
    """Return the `CLOSE` frame of the server; *reason* is truncated to 123 bytes."""
    return control_frame(CLOSE, code.to_bytes(2, "big") + truncate_reason(reason).encode())


def truncate_reason(reason: str) -> str:
    """Return as much of *reason* as fits a `CLOSE` frame."""
    return reason.encode(errors="replace")[: _MAX_CONTROL - 2].decode(errors="ignore")
