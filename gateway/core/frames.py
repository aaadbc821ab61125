"""Server frames of a WebSocket (RFC 6455, section 5.2): a text message in one unmasked frame.

A text session queues frames, not payloads: a frame is made once with its message's form and shared by every connection
that wants it. `payload` returns the payload of a frame to shells that need it.
"""

from __future__ import annotations

from functools import lru_cache

_FIN_TEXT = 0x81


def text_frame(payload: bytes) -> bytes:
    """The frame that carries *payload*, which is UTF-8 text."""
    return header(len(payload)) + payload


@lru_cache(maxsize=4096)
def header(size: int) -> bytes:
    """The header of a frame whose payload has *size* bytes."""
    if size < 126:
        return bytes((_FIN_TEXT, size))
    if size < 1 << 16:
        return (_FIN_TEXT << 24 | 126 << 16 | size).to_bytes(4)
    return bytes((_FIN_TEXT, 127)) + size.to_bytes(8)


def payload(frame: bytes) -> bytes:
    """The text that `text_frame` put into *frame*."""
    return frame[{126: 4, 127: 10}.get(frame[1], 2) :]
