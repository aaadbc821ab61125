"""REST: requests, and the load of many messages in one body."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from .servers import BenchmarkServer
from .sockets import PATIENCE_SECONDS, connect
from .workload import CountedLoad, LoadError

TEXT = "x" * 60
LINES = "POST /v1/channels/lines/messages HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-ndjson\r\n"
END = "Connection: close\r\nContent-Length: %d\r\n\r\n"
ACCEPTED = b'"sequence":'


def rest(server: BenchmarkServer, method: str, path: str, body: bytes | None = None) -> Any:
    """Return what the gateway's REST interface answers."""
    with closing(http.client.HTTPConnection(server.http, timeout=PATIENCE_SECONDS)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        return json.loads(connection.getresponse().read())


def community(server: BenchmarkServer, channel: str) -> str:
    """Create *channel*; return the id of its Arbor community, once that is signed."""
    path = f"/v1/channels/{channel}"
    rest(server, "PUT", path)
    while (id := rest(server, "GET", path).get("community")) is None:
        time.sleep(0.02)
    return str(id)


class BulkLines(CountedLoad):
    """*count* messages in one request, a line for each, answered line by line as they reach the disk."""

    def __init__(self, count: int) -> None:
        self.count = count

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Send a few lines before."""
        send_lines(server, max(self.count // 20, 1))
        yield lambda: send_lines(server, self.count)


def send_lines(server: BenchmarkServer, count: int) -> int:
    """Publish *count* messages; return how many were accepted, which are all."""
    body = b"".join(b'{"n":%d,"text":"%b"}\n' % (n, TEXT.encode()) for n in range(count))
    at = server.addresses["rest"]
    with closing(connect(at.host, at.port)) as wire:
        wire.sendall((LINES % server.http + END % len(body)).encode())
        sender = threading.Thread(target=wire.sendall, args=(body,), daemon=True)  # answers come meanwhile
        sender.start()
        answer = bytearray()
        while data := wire.recv(1 << 18):
            answer += data
        sender.join()
    if (accepted := answer.count(ACCEPTED)) != count:
        raise LoadError(f"{accepted} of {count} lines were accepted: {bytes(answer[-300:])!r}")
    return accepted
