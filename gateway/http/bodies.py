"""Reads the bodies of requests within limits of size, time and memory; long bodies are processed one at a time.

A body counts in the budget of memory (`gateway.core.memory_budget`) while it arrives and while it waits, with every
server; `uvicorn_http.FastHttp` counts what the application has not asked for yet. It takes 10 to 40 ms to check and
publish a MiB, and a hundred bodies may come at once. So bodies longer than `SHORT_BODY` take turns, network by network,
and together they get `SHARE` of the time of the loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from time import perf_counter

import anyio
from anyio import CancelScope
from anyio.lowlevel import RunVar
from fastapi import Request
from starlette.requests import HTTPConnection

from gateway.core.errors import RequestError
from gateway.core.networks import network
from gateway.core.read_pacer import ReadPacer

from .fair_queue import FairQueue

SHORT_BODY = 1 << 16  # bytes of JSON that are checked on the loop, without waiting: half a millisecond's work
BODY_SECONDS = 30.0  # for a whole body to arrive
SHARE = 0.2  # of the time that all long bodies together may use
ALLOWANCE = 0.05  # seconds that they may use at once before the share limits them
PACED_EXTENSION = "trellis.paced"  # an ASGI extension: the server paces the bytes that it reads


class BodyRefused(RequestError):
    """A body that was not read to its end; the HTTP *status* says why."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class IncomingBody:
    """A body that is arriving or waits for its turn; a holder of the memory budget."""

    def __init__(self, network: str) -> None:
        self.network = network
        self.data = bytearray()  # it may arrive byte by byte
        self.scope = CancelScope()

    @property
    def held_size(self) -> int:
        """Return how many bytes have arrived."""
        return len(self.data)

    def release_memory(self) -> None:
        """Stop reading, or waiting for a turn."""
        self.scope.cancel()

    def check_kept(self) -> None:
        """Raise `BodyRefused` 503 if the memory was needed while it arrived, or waited."""
        if self.scope.cancel_called:
            raise BodyRefused(503, "the gateway is short of memory; try again in a moment", {"Retry-After": "1"})

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn if the body is long; process it in the context. Await nothing there: all long bodies wait."""
        if len(self.data) <= SHORT_BODY:
            yield
            return
        async with AsyncExitStack() as stack:
            with CancelScope() as self.scope:
                await stack.enter_async_context(turn_queue().turn(self.network))
            self.check_kept()
            yield


class TurnQueue:
    """Schedules long work: one piece at a time, the networks round-robin, all of it in `SHARE` of the time.

    *clock* returns seconds, *sleep* waits for some.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._queue = FairQueue()  # unbounded: the bodies that wait count in the memory budget
        self._used = 0.0  # seconds used lately, which decay
        self._then = clock()

    @asynccontextmanager
    async def turn(self, network: str) -> AsyncIterator[None]:
        """Wait for a turn of *network*; the turn ends with the context."""
        async with self._queue.turn(network):
            if (pause := (self._level() - ALLOWANCE) / SHARE) > 0:
                await self._sleep(pause)
            begin = self._clock()
            try:
                yield
            finally:
                self._used = self._level() + self._clock() - begin

    def _level(self) -> float:
        """Return the seconds used lately, after decay up to now."""
        then, self._then = self._then, self._clock()
        self._used = max(0.0, self._used - (self._then - then) * SHARE)
        return self._used


_turn_queue: RunVar[TurnQueue] = RunVar("trellis-long-bodies")


def turn_queue() -> TurnQueue:
    """Return the turn queue of the running event loop."""
    if (found := _turn_queue.get(None)) is None:
        found = TurnQueue()
        _turn_queue.set(found)
    return found


def network_of(request: HTTPConnection) -> str:
    """Return the network that *request* comes from."""
    client = request.scope.get("client")
    return network(client[0]) if client else ""


@asynccontextmanager
async def read_body(
    request: Request, limit: int, read_pacer: ReadPacer | None, malformed: tuple[type[Exception], ...] = ()
) -> AsyncIterator[bytes]:
    """Yield the body of *request*, in its turn if it is long, so await nothing in the context; see `hold_body`."""
    async with hold_body(request, limit, read_pacer, malformed) as body, body.turn():
        yield bytes(body.data)


@asynccontextmanager
async def hold_body(
    request: Request, limit: int, read_pacer: ReadPacer | None, malformed: tuple[type[Exception], ...] = ()
) -> AsyncIterator[IncomingBody]:
    """Yield the body of *request*, which counts in the memory budget. Make all checks that do not need it first.

    Process it in its `turn`. Raises `BodyRefused`: 413 once it is known to be longer than *limit* bytes, 408 if it does
    not arrive within `BODY_SECONDS`, 503 if the memory budget of *read_pacer* is used up. If the context raises one of
    *malformed*, the body is charged to its network.
    """
    read_pacer = read_pacer or ReadPacer(None, perf_counter)
    # After 413 or 408 the client may still be sending, so the connection ends (HTTP/2 can end just the stream).
    ending = {"Connection": "close"} if request.scope.get("http_version") in ("1.0", "1.1") else {}
    too_long = BodyRefused(413, f"more than {limit:,} bytes; send less, or in parts", ending)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > len(str(limit)) or int(length) > limit:
        raise too_long
    body = IncomingBody(network_of(request))
    read_pacer.budget.enter(body)
    try:
        with body.scope:
            if not await _read(request, body, limit, read_pacer):
                raise BodyRefused(408, f"the body took more than {BODY_SECONDS:.0f} s; send less, or in parts", ending)
            if len(body.data) > limit:
                raise too_long
        body.check_kept()
        try:
            yield body
        except malformed:
            read_pacer.charge_malformed_body(body.network, len(body.data))
            raise
    finally:
        read_pacer.budget.leave(body)


async def _read(request: Request, body: IncomingBody, limit: int, read_pacer: ReadPacer) -> bool:
    """Read until the end of *body*, or beyond its *limit*; return False if it does not arrive in time."""
    is_paced = PACED_EXTENSION in request.scope.get("extensions", ())
    with anyio.move_on_after(BODY_SECONDS):
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body.data += chunk
                if not is_paced and (wait := read_pacer.record_bytes(body.network, len(chunk), None)):
                    await anyio.sleep(wait)
                # Chunks that have arrived already come without waiting, so no cancellation or time limit interrupts.
                if len(body.data) > limit or body.scope.cancel_called:
                    break
        return True
    return False
