"""Requests to a gateway over REST, and what they are answered with."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx

PATIENCE = 60.0
NDJSON = {"Content-Type": "application/x-ndjson"}
LOBBY = "/v1/channels/lobby/messages"


def say(client: httpx.Client, content: Any = "hi", path: str = LOBBY, **headers: str) -> Any:
    response = client.post(path, content=json.dumps(content), headers=headers)
    assert response.status_code == 201, response.text
    return response.json()


def lines(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def problem(response: httpx.Response, status: int) -> str:
    """The detail of what must be a problem."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["title"]
    detail: str = body["detail"]
    assert detail
    return detail


class BulkConnection:
    """A body of lines that is sent and answered a piece at a time, over a plain socket."""

    def __init__(self, server: Any, buffer: int = 1 << 16) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE)
        host, port = server.url.removeprefix("http://").split(":")
        self.socket.connect((host, int(port)))
        head = f"POST {LOBBY} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        self.socket.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        self._stream = self.socket.makefile("rb")
        try:
            while self._stream.readline().strip():
                pass
        except OSError:
            self.__exit__()
            raise

    def __enter__(self) -> BulkConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def receive(self) -> list[Any]:
        """The results of one chunk; none at the end."""
        size = int(self._stream.readline(), 16)
        data = self._stream.read(size + 2)[:-2]
        return [json.loads(line) for line in data.splitlines()]
