"""Hypercorn's WebSocket handshake without compression, for which hypercorn has no setting.

A compressed message of 290 kB can stand for half a gigabyte, which is unpacked before its size is looked at.
"""

from __future__ import annotations

from hypercorn.protocol import ws_stream


class Handshake(ws_stream.Handshake):
    """A handshake that agrees to no extension (RFC 6455, section 9.1), whatever the client offers."""

    def __init__(self, headers: list[tuple[bytes, bytes]], http_version: str) -> None:
        super().__init__(headers, http_version)
        self.extensions = None


def disable_compression() -> None:
    """Let every WebSocket of hypercorn in this process go without compression."""
    ws_stream.Handshake = Handshake  # type: ignore[misc]  # the one place where hypercorn chooses it
