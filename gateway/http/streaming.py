"""Responses that are written while the client reads them, and that end with it.

Starlette and sse-starlette cancel tasks when the client leaves or the response is complete, and anyio keeps a cancelled
task in a reference cycle, with its frames and what they refer to, until a full garbage collection, which is rare by
design (`gateway.service`). Here no task is cancelled: the one that watches the client ends by itself, and tells the one
that writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any, Final

import anyio
from fastapi import Response
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from gateway.core.outbox import LOW_WATER

GRACE_SECONDS = 1.0  # for the server to report the end of a complete response
CHECKS = 3  # of a response in the time for which a write may stall
LAST_CHUNK: Final = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return *data*, which is not empty, as a chunk of an HTTP/1.1 body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class StreamedResponse(Response):
    """A response of unknown length. A client that reads nothing of a write for *stalled_seconds* ends it.

    `stalled` says afterwards whether that happened; the server aborts the unfinished response. It is checked `CHECKS`
    times in that period, so that a write needs no timer.
    """

    def __init__(self, media_type: str, headers: dict[str, str] | None = None, *, stalled_seconds: float) -> None:
        self.status_code, self.media_type, self.background = 200, media_type, None
        self.init_headers(headers)
        self.raw_headers = [each for each in self.raw_headers if each[0] != b"content-length"]
        self.stalled = False
        self._stalled_seconds = stalled_seconds
        self._writing = anyio.CancelScope()
        self._sending = False
        self._last_sent = monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # as in ASGI
        """Write the response, and watch the client meanwhile."""
        gone, failure = anyio.Event(), None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, receive, gone)
            try:
                with self._writing:
                    await self._write(send)
                    with anyio.move_on_after(GRACE_SECONDS):
                        await gone.wait()
            except Exception as error:  # a group would wrap it
                failure = error
            if not gone.is_set():
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def end(self) -> None:
        """End the response early: the client has left. What `_write` waits for must end soon."""

    def abort(self) -> None:
        """End the response where it is."""
        self._writing.cancel()

    async def write(self, send: Send) -> None:
        """Write the body with `send_body`; an error that it raises ends the response where it is."""
        raise NotImplementedError

    async def _write(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self.write(send)
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def send_body(self, send: Send, body: bytes) -> None:
        """Send *body*, a part of the response."""
        await self._send(send, {"type": "http.response.body", "body": body, "more_body": True})

    async def _send(self, send: Send, event: Event | dict[str, Any]) -> None:
        self._sending, self._last_sent = True, monotonic()
        await send(event)
        self._sending = False

    async def _watch(self, receive: Receive, gone: anyio.Event) -> None:
        pause = self._stalled_seconds / CHECKS
        received = None
        while received is None or received["type"] != "http.disconnect":
            with anyio.move_on_after(pause) as waiting:
                received = await receive()
            if waiting.cancelled_caught:
                self._check()
        gone.set()
        self.end()

    def _check(self) -> None:
        if self._sending and monotonic() - self._last_sent >= self._stalled_seconds:
            self.stalled = True
            self.abort()


def coalesce(data: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *data* joined into pieces of about `LOW_WATER` bytes, each worth a write."""
    some: list[bytes] = []
    size = 0
    for one in data:
        some.append(one)
        size += len(one)
        if size >= LOW_WATER:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)
