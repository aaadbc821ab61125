"""A port of its own for `GET /metrics`, `/healthz` and `/readyz`, which needs no key: `metrics.port`.

It answers one request on each connection and closes it. It shares nothing with the gateway's own HTTP server, so it
answers also while that has no room for another connection.
"""

from __future__ import annotations

import json
from contextlib import suppress

import anyio
import structlog
from anyio.abc import ByteStream, SocketAttribute, TaskGroup
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.runtime import Gateway

MAX_HEAD = 8 << 10  # bytes of a request
MAX_CONNECTIONS = 16  # that are answered at once
SECONDS = 10.0  # for a request to come, and for its response to be read
JSON = "application/json"
logger = structlog.get_logger("trellis")

DISCONNECTED = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


async def listen(gateway: Gateway, host: str, port: int, tasks: TaskGroup) -> str:
    """Serve *gateway*'s metrics at *host* and *port* in *tasks*; return the address, with the port that was taken."""
    listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    answering = set[ByteStream]()

    async def handle(stream: ByteStream) -> None:
        async with stream:
            if len(answering) >= MAX_CONNECTIONS:
                return
            answering.add(stream)
            try:
                with suppress(*DISCONNECTED), anyio.move_on_after(SECONDS):
                    await stream.send(await _response(gateway, await _target(stream)))
            except Exception:  # a bug; the gateway goes on
                logger.exception("the metrics could not be read")
            finally:
                answering.discard(stream)

    tasks.start_soon(listener.serve, handle)
    return f"{host}:{listener.extra(SocketAttribute.local_port)}"


async def _target(stream: ByteStream) -> str:
    """The path that the request on *stream* asks for; empty if it is not a GET request."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < MAX_HEAD:
        head += await stream.receive()
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    return rest.partition(" ")[0].partition("?")[0] if method == "GET" else ""


async def _response(gateway: Gateway, target: str) -> bytes:
    match target:
        case "/metrics":
            return _encode(200, CONTENT_TYPE_LATEST, await gateway.metrics.exposition())
        case "/healthz":
            return _encode(200, JSON, b'{"status":"alive"}')
        case "/readyz":
            reasons = "; ".join(gateway.unready_reasons())
            return _encode(503 if reasons else 200, JSON, json.dumps({"status": reasons or "ready"}).encode())
    return _encode(404, "text/plain", b"GET /metrics, /healthz or /readyz\n")


def _encode(status: int, media_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} -\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
