"""Compression is refused on every event loop, so that no peer can send a compression bomb."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.server import Server

OFFER = (
    b"GET /relay HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
COMPRESSED = bytes((0xC1, 0x83, 0, 0, 0, 0)) + b"\x2b\x01\x00"  # RSV1: a text of one letter, compressed


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_compression_is_refused_on_every_loop(tmp_path: Path, loop: str) -> None:
    with Server(tmp_path, "--loop", loop) as server:
        host, port = server.http.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as peer:
            peer.sendall(OFFER % server.http.encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += peer.recv(4096)
            assert head.startswith(b"HTTP/1.1 101")
            assert b"sec-websocket-extensions" not in head.lower()
            peer.sendall(COMPRESSED)
            answer = head.partition(b"\r\n\r\n")[2]
            while data := peer.recv(4096):
                answer += data
            expected = bytes((0x88,)), (1002).to_bytes(2, "big")
            assert (answer[:1], answer[2:4]) == expected or (loop == "trio" and not answer), "hypercorn just hangs up"
