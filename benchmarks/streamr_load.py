"""A publisher and its subscribers on raw sockets, which cost next to nothing: messages are signed beforehand.

All messages have the same length, so deliveries are counted by bytes: at the end there must be exactly so many.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence

from coincurve import PrivateKey
from Crypto.Hash import keccak

PATH = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"
STREAM = "bench"
CONTENT = json.dumps({"text": "x" * 80}, separators=(",", ":"))
PATIENCE_SECONDS = 30.0
CHUNK = 1 << 20

KEY = PrivateKey.from_int(0xBE7C4)


class Stalled(Exception):
    """Nothing came for a long time, or something else than a message."""


def _keccak(data: bytes) -> bytes:
    return keccak.new(data=data, digest_bits=256).digest()


ADDRESS = "0x" + _keccak(KEY.public_key.format(compressed=False)[1:])[12:].hex()


def messages(count: int, *, signed: bool, start: int) -> list[bytes]:
    """Frames of PublishRequests, ready to be sent; timestamps begin at *start* (ms), ten messages in each."""
    return [_request(start + number // 10, number % 10, signed=signed) for number in range(count)]


def _request(timestamp: int, sequence: int, *, signed: bool) -> bytes:
    publisher, chain = (ADDRESS, "benchmarkbenchmark00") if signed else ("", "")
    signature = None
    if signed:
        text = f"{STREAM}0{timestamp}{sequence}{publisher}{chain}{CONTENT}".encode()
        digest = _keccak(b"\x19Ethereum Signed Message:\n%d" % len(text) + text)
        raw = KEY.sign_recoverable(digest, hasher=None)
        signature = f"0x{raw[:64].hex()}{raw[64] + 27:02x}"
    message_id = [STREAM, 0, timestamp, sequence, publisher, chain]
    row = [32, message_id, None, 27, 0, 0, None, CONTENT, None, 2 if signed else 0, signature]
    return _frame(json.dumps([2, 8, "request", row, None], separators=(",", ":")).encode())


def _frame(payload: bytes) -> bytes:
    """A client's text frame, masked with zeros (RFC 6455, section 5.2)."""
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else bytes((0x81, 0xFE, size >> 8, size & 0xFF))
    return head + bytes(4) + payload


def connect(http: str) -> socket.socket:
    """A WebSocket to the server at *http*."""
    host, _, port = http.rpartition(":")
    wire = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wire.sendall(
        f"GET {PATH} HTTP/1.1\r\nHost: {http}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += wire.recv(1)
    if not head.startswith(b"HTTP/1.1 101"):
        raise Stalled(head.decode())
    return wire


class Load:
    """One publisher and *listeners* subscribers at the server *http*."""

    def __init__(self, http: str, listeners: int) -> None:
        self._publisher = connect(http)
        self._listeners = [connect(http) for _ in range(listeners)]
        for wire in self._listeners:
            wire.sendall(_frame(json.dumps([2, 9, "s", STREAM, 0, None]).encode()))
            if b'[2,2,"s"' not in wire.recv(4096):
                raise Stalled("not subscribed")
        self._numbers = {wire.fileno(): number for number, wire in enumerate(self._listeners)}
        self._buffer = bytearray(CHUNK)
        self._size = 0  # of a delivery

    def begin(self, frame: bytes) -> None:
        """Publish one message and learn how long it is where it is heard."""
        self._publisher.sendall(frame)
        for wire in self._listeners:
            wire.settimeout(PATIENCE_SECONDS)
            head = wire.recv(4, socket.MSG_WAITALL)
            if head[:2] != b"\x81\x7e":
                raise Stalled(f"no message of usual size: {head!r}")
            size = int.from_bytes(head[2:])
            if not (text := wire.recv(size, socket.MSG_WAITALL)).startswith(b'[2,0,"",[32,'):
                raise Stalled(f"no message: {text!r}")
            self._size = len(head) + size

    def run(self, frames: Sequence[bytes], window: int) -> float:
        """Publish *frames*, at most *window* of them before all have heard them; how many seconds that took."""
        start = time.monotonic()
        received = [0] * len(self._listeners)
        poll = select.epoll()
        for wire in self._listeners:
            poll.register(wire, select.EPOLLIN)
        sent = slowest = 0
        while slowest < len(frames):
            if sent < len(frames) and sent - slowest <= window // 2:
                upto = min(slowest + window, len(frames))
                self._publisher.sendall(b"".join(frames[sent:upto]))
                sent = upto
            self._receive(poll, received)
            slowest = min(received) // self._size
        if set(received) != {len(frames) * self._size}:
            raise Stalled(f"other bytes came than messages: {sorted(set(received))}")
        poll.close()
        return time.monotonic() - start

    def _receive(self, poll: select.epoll, received: list[int]) -> None:
        events = poll.poll(PATIENCE_SECONDS)
        if not events:
            refused = select.select([self._publisher], [], [], 0)[0] and self._publisher.recv(4096)
            raise Stalled(f"nothing came: {refused!r}")
        for descriptor, _ in events:
            number = self._numbers[descriptor]
            received[number] += self._listeners[number].recv_into(self._buffer)

    def close(self) -> None:
        """Hang up."""
        for wire in (self._publisher, *self._listeners):
            wire.close()
