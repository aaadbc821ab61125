"""`POST .../messages`: one message, or one on each line; each is answered once it is on disk, not before.

A body of lines (NDJSON) is read and answered at the same time and never held: what is kept is bounded by
`MAX_UNSENT` results, and a client that sends without reading its results is slowed. All lines that arrive
together go to the disk together.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from typing import Any

import anyio
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from . import views
from .bus import Receipt
from .callers import Caller
from .errors import Conflict, RequestError, Throttled, Unknown
from .jsontext import dumps, loads, one_line
from .message import Message
from .problems import PROTOCOL, Problem, explain
from .runtime import Gateway

MAX_CONTENT = 1 << 20  # bytes of one message; a record of the log can hold that and what is said about it
MAX_KEY = 512  # characters of an Idempotency-Key
MAX_UNSENT = 4 << 20  # bytes of results that wait for the disk or the client; beyond it no line is read
SLICE = 128  # lines that are taken in one turn of the loop
BODY_SECONDS = 30.0  # for the body of one message to arrive; lines may take their time
STALLED_SECONDS = 60.0  # for a client to read a result; then the connection ends
STOP_SECONDS = 1.0  # the same, while the gateway stops

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
TOO_LONG = f"a message has at most {MAX_CONTENT} bytes; send less, or in parts"
SPACE = b" \t\r\n"


async def synced(gateway: Gateway, seq: int) -> None:
    """Wait until everything up to *seq* is on disk; `Unknown` where the disk fails meanwhile."""
    done, doubts = anyio.Event(), list[bool]()

    def doubt() -> None:
        doubts.append(True)
        done.set()

    gateway.log.when_synced(seq, done.set, doubt)
    await done.wait()
    if doubts:
        raise Unknown(f"the log cannot be written: {gateway.log.failing}")


async def read_body(request: Request, limit: int = MAX_CONTENT) -> bytes:
    """The body of *request*; `Problem` 413 once it is known to be longer than *limit*, 408 if it does not come."""
    # Who is told so may be sending still, for ever: the connection ends (HTTP/2 has other words for that).
    ending = {"Connection": "close"} if request.scope.get("http_version") in ("1.0", "1.1") else {}
    if int(request.headers.get("content-length", 0)) > limit:
        raise Problem(413, TOO_LONG, ending)
    body = b""
    with anyio.move_on_after(BODY_SECONDS):
        async for chunk in request.stream():
            body = body + chunk if body else chunk
            if len(body) > limit:
                raise Problem(413, TOO_LONG, ending)
        return body
    raise Problem(408, f"the body took more than {BODY_SECONDS:.0f} s; send less, or in parts", ending)


def content_of(body: bytes) -> tuple[bytes, Any]:
    """The JSON text in *body*, on one line, and its value; `Problem` 400 where it is none."""
    text = body.strip(SPACE)
    try:
        return one_line(text), loads(text)
    except ValueError as error:
        raise Problem(400, f"the content is not one JSON value: {error}") from None


class Publisher:
    """Publishes what one caller says on one channel; with an Idempotency-Key each message goes out once."""

    def __init__(self, caller: Caller, channel: str, key: str | None) -> None:
        if key is not None and len(key) > MAX_KEY:
            raise Problem(400, f"an Idempotency-Key has at most {MAX_KEY} characters")
        self.gateway = caller.gateway
        self.channel = channel
        self.channel_json = dumps(channel)
        self._caller = caller
        self._who = caller.who
        self._key = key

    def publish(self, body: bytes, *line: int) -> Receipt | Message:
        """Take one message (the *line*-th of a request); raises `RequestError` where it is refused."""
        self._caller.check("publish", self.channel)
        content, value = content_of(body)
        if self._key is None:
            return self._publish(content, value)
        key = f"key:{dumps([self._who.identity, self.channel, self._key, *line]).decode()}"
        found = self.gateway.log.find(key)
        if found is None:
            return self._publish(content, value, key)
        first = self.gateway.index.entry(found.seq)
        if isinstance(first, Message) and first.content != content:
            raise Conflict(f"another message came with the Idempotency-Key {self._key!r} before")
        return found

    def answer(self, taken: Receipt | Message) -> bytes:
        """What the sender of *taken* is told."""
        return views.accepted(self.channel_json, taken)

    def _publish(self, content: bytes, value: Any, key: str | None = None) -> Message:
        message = Message(self.channel, self._who, PROTOCOL, content, key=key)
        if type(value) is dict and isinstance(parent := value.get("inReplyTo"), str):
            message.parent = parent
        return self.gateway.bus.publish(message)


class Lines:
    """Cuts a stream of bytes into lines; one of more than *limit* bytes comes out as None."""

    def __init__(self, limit: int = MAX_CONTENT) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """The lines that *data* completes; blank ones are left out."""
        *ends, rest = data.split(b"\n")
        lines: list[bytes | None] = []
        for end in ends:
            self._add(end)
            lines += self.end()
        self._add(rest)
        return lines

    def end(self) -> list[bytes | None]:
        """What is left when the line, or the stream, ends here."""
        line, self._rest = bytes(self._rest), bytearray()
        skipped, self._skipping = self._skipping, False
        return [None] if skipped else [line] if line.strip(SPACE) else []

    def _add(self, data: bytes) -> None:
        if not self._skipping:
            self._rest += data
            if len(self._rest) > self._limit:
                self._skipping = True
                self._rest = bytearray()


class Signal:
    """Wakes one task, again and again; a call of `set` is never missed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the task, or let it not sleep next time."""
        self._event.set()

    async def wait(self) -> None:
        """Sleep until `set` was called since the last time."""
        await self._event.wait()
        self._event = anyio.Event()


class Bulk(Response):
    """The response to a body of lines: one result on each line, in order, while the body is still being read."""

    def __init__(self, publisher: Publisher, request: Request) -> None:
        super().__init__(media_type=NDJSON[0])
        del self.headers["content-length"]
        self._publisher = publisher
        self._gateway = publisher.gateway
        self._request = request
        self._results: deque[tuple[int, bytes]] = deque()  # what must be on disk first, and what is said then
        self._unsent = 0
        self._numbers = count(1)
        self._over = False
        self._ready = Signal()
        self._room = Signal()
        self._reading = anyio.CancelScope()
        self._sending = anyio.CancelScope()
        self._patience = STALLED_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI
        """Answer until the body ends and its last line is on disk."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            self._gateway.at_goodbye.add(self._stop)
            try:
                await self._write(send)
            finally:
                self._gateway.at_goodbye.discard(self._stop)
            tasks.cancel_scope.cancel()

    def _stop(self) -> None:
        """The gateway stops: no further line is taken, and those that were are answered."""
        self._patience = STOP_SECONDS
        self._reading.cancel()
        self._sending.deadline = min(self._sending.deadline, anyio.current_time() + STOP_SECONDS)

    async def _read(self) -> None:
        lines = Lines()
        with self._reading, suppress(ClientDisconnect):  # nobody is told; a line that was cut off is none
            async for chunk in self._request.stream():
                await self._take(lines.feed(chunk))
            await self._take(lines.end())
        self._over = True
        self._ready.set()

    async def _take(self, lines: list[bytes | None]) -> None:
        """Publish *lines*, no faster than the limits, the disk and the client allow."""
        todo = deque(lines)
        while todo:
            await anyio.sleep(self._publish(todo))
            while self._unsent > MAX_UNSENT:
                await self._room.wait()
            while self._gateway.bus.congested:
                await synced(self._gateway, self._gateway.log.next_seq - 1)

    def _publish(self, todo: deque[bytes | None]) -> float:
        """Publish a few lines of *todo*; return the seconds to wait before the next."""
        last, wait = 0, 0.0
        results: list[bytes] = []
        while todo and len(results) < SLICE:
            try:
                seq, result = self._result(todo[0])
            except Throttled as error:  # it is not refused: its turn comes later
                wait = error.retry_after_seconds
                break
            todo.popleft()
            last = max(last, seq)
            results.append(result)
        if results:
            said = b"".join(results)
            self._unsent += len(said)
            self._results.append((last, said))
            self._gateway.log.when_synced(last, self._ready.set)
        return wait

    def _result(self, line: bytes | None) -> tuple[int, bytes]:
        """The sequence that must be on disk, and the line that is sent then."""
        number = next(self._numbers)
        try:
            if line is None:
                raise Problem(413, TOO_LONG)
            taken = self._publisher.publish(line, number)
        except Throttled:
            self._numbers = count(number)
            raise
        except RequestError as error:
            problem = explain(error)
            self._gateway.metrics.count("refused", PROTOCOL, str(problem.status))
            return 0, problem.body(line=number) + b"\n"
        return taken.seq, self._publisher.answer(taken) + b"\n"

    async def _write(self, send: Send) -> None:
        """Send results as their messages reach the disk, until the last or until the client does not read them."""
        while not (self._over and not self._results):
            said = []
            while self._results and self._results[0][0] <= self._gateway.log.synced_seq:
                said.append(self._results.popleft()[1])
            if not said:
                await self._ready.wait()
                continue
            body = b"".join(said)
            await self._send(send, body, more=True)
            if self._sending.cancelled_caught:
                return
            self._unsent -= len(body)
            self._room.set()
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool) -> None:
        with anyio.move_on_after(self._patience) as self._sending:
            await send({"type": "http.response.body", "body": body, "more_body": more})
