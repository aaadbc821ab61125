"""hypercorn's WebSocket handshake without compression, for which hypercorn has no setting.

A compressed message of 290 kB can expand to half a gigabyte, and hypercorn unpacks it before it checks the size.
"""

from __future__ import annotations

from hypercorn.protocol import ws_stream


class Handshake(ws_stream.Handshake):
    """A handshake that accepts no extension (RFC 6455, section 9.1), whatever the client offers."""

    def __init__(self, headers: list[tuple[bytes, bytes]], http_version: str) -> None:
        super().__init__(headers, http_version)
        self.extensions = None


def disable_compression() -> None:
    """Make every WebSocket of hypercorn in this process refuse compression."""
    ws_stream.Handshake = Handshake  # type: ignore[misc]  # the one place where hypercorn chooses it
