"""Persistent HTTP connections (RFC 9112, section 9), on every server.

A connection is kept for the next request, and the client is told for how long. If a request is answered before all of
its body was read, the rest is read and discarded first: most clients send all of it before they read the response, and
closing a connection with unread input resets it, which loses the response.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import MEDIA_TYPE, Problem

MAX_DISCARDED = 24 << 20  # bytes of a body: many times the largest that is accepted
DISCARD_SECONDS = 5.0  # for those bytes to arrive

Headers = Iterable[tuple[bytes, bytes]]


def raw_response(problem: Problem) -> bytes:
    """Return *problem* as the bytes of an HTTP/1.1 response that ends the connection."""
    body = problem.body()
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": len(body), "Connection": "close", **problem.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n{lines}\r\n".encode() + body


class PersistentConnections:
    """ASGI middleware: tells clients for how many *seconds* a connection is kept, and discards unread bodies."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._keep_alive = (b"keep-alive", b"timeout=%d" % seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        kept = self._keep_alive if scope["http_version"] == "1.1" and not _closes(headers) else None
        if any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
        ):
            exchange = _RequestWithBody(receive, send, kept)
            await self._app(scope, exchange.receive, exchange.send)
            return

        async def tell(message: Message) -> None:
            if kept is not None and message["type"] == "http.response.start":
                _add_keep_alive(message, kept)
            await send(message)

        await self._app(scope, receive, tell)


class _RequestWithBody:
    """A request with a body, and its response."""

    def __init__(self, receive: Receive, send: Send, kept: tuple[bytes, bytes] | None) -> None:
        self._receive = receive
        self._send = send
        self._keep_alive = kept
        self._more = True  # more of the body is to come
        self._lingers = False  # the response has a length, so the client need not wait for the end of the connection

    async def receive(self) -> Message:
        message = await self._receive()
        self._more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._keep_alive is not None:
                _add_keep_alive(message, self._keep_alive)
            self._lingers = any(name.lower() == b"content-length" for name, _ in message["headers"])
        elif self._more and self._lingers and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._discard_body()
            return
        await self._send(message)

    async def _discard_body(self) -> None:
        """Discard the rest of the body, then end the response; past the limits, end it while still reading."""
        enough = anyio.Event()

        async def discard() -> None:
            discarded = 0
            while self._more:
                discarded += len((await self.receive()).get("body", b""))
                if discarded > MAX_DISCARDED:
                    enough.set()
            enough.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(discard)
            with anyio.move_on_after(DISCARD_SECONDS):
                await enough.wait()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            tasks.cancel_scope.cancel()


def _closes(headers: Headers) -> bool:
    """Whether *headers* say that the connection closes after this response."""
    return any(name.lower() == b"connection" and b"close" in value.lower() for name, value in headers)


def _add_keep_alive(message: Message, kept: tuple[bytes, bytes]) -> None:
    """Add the `Keep-Alive` header, unless the connection closes."""
    if not _closes(message["headers"]):
        message["headers"] = [*message["headers"], kept]
