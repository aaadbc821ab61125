"""Clients on raw sockets for the loads in Python: they cost little, and count what they hear by a mark in it."""

from __future__ import annotations

import socket

from .servers import ServiceAddress
from .workload import MARK, LoadError

PATIENCE_SECONDS = 30.0
CHUNK = 1 << 18  # bytes of one read

UPGRADE = (
    "GET %s HTTP/1.1\r\nHost: %s:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
EVENTS = "GET %s HTTP/1.1\r\nHost: %s:%d\r\nAccept: text/event-stream\r\n\r\n"


def connect(host: str, port: int) -> socket.socket:
    """Open a connection that sends at once and waits for `PATIENCE_SECONDS` at most."""
    wire = socket.create_connection((host, port), PATIENCE_SECONDS)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wire


def connect_websocket(at: ServiceAddress) -> socket.socket:
    """Open a WebSocket."""
    wire = connect(at.host, at.port)
    _request(wire, UPGRADE % (at.path, at.host, at.port), b"HTTP/1.1 101")
    return wire


def connect_events(at: ServiceAddress, channel: str) -> socket.socket:
    """Listen to the server-sent events of *channel*; the first one, `welcome`, has been read."""
    wire = connect(at.host, at.port)
    _request(wire, EVENTS % (f"/v1/channels/{channel.replace(' ', '%20')}/events", at.host, at.port), b"HTTP/1.1 200")
    read_until(wire, b"\n\n")
    return wire


def _request(wire: socket.socket, text: str, status: bytes) -> None:
    wire.sendall(text.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += _received(wire, 1)
    if not head.startswith(status):
        raise LoadError(f"the handshake was refused: {head.decode(errors='replace')}")


def read_until(wire: socket.socket, mark: bytes) -> bytes:
    """Read until *mark* has come; return everything that came."""
    heard = b""
    while mark not in heard:
        heard += _received(wire, CHUNK)
    return heard


def _received(wire: socket.socket, size: int) -> bytes:
    try:
        data = wire.recv(size)
    except TimeoutError:
        raise LoadError("the server does not answer") from None
    if not data:
        raise LoadError("the server hung up")
    return data


def text_frame(payload: bytes) -> bytes:
    """Return a client's text frame, masked with zeros (RFC 6455, section 5.2)."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else bytes((0x81, 0xFE, size >> 8, size & 0xFF))
    return head + bytes(4) + payload


class SocketListener:
    """A connection that is only read; `heard` counts the messages, each of which has `MARK` in it once."""

    def __init__(self, wire: socket.socket) -> None:
        self.socket = wire
        self.heard = 0
        self._rest = b""

    def take(self) -> None:
        """Read what there is."""
        data = self._rest + _received(self.socket, CHUNK)
        self.heard += data.count(MARK)
        self._rest = data[-len(MARK) + 1 :]
