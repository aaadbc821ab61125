"""A stop waits neither for unfinished requests nor for clients that do not read."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.server import Server

HALF = b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
UNREAD = b"GET /v1/channels/lobby/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("request_text", [HALF, UNREAD], ids=["half a body", "unread events"])
def test_a_stop_ends_with_zero_and_quietly(tmp_path: Path, loop: str, request_text: bytes) -> None:
    with Server(tmp_path / "data", "--loop", loop, fresh=True) as server:
        for number in range(60):
            body = json.dumps({"n": number, "text": "x" * 100_000}).encode()
            url = f"http://{server.http}/v1/channels/lobby/messages"
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:
                assert response.status == 201
        host, _, port = server.http.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(request_text)
            client.settimeout(30)
            if request_text == UNREAD:
                assert client.recv(1000).startswith(b"HTTP/1.1 200")
            assert server.stop(30) == 0
        assert "Traceback" not in server.log
