"""HTTP responses of any length, made at the pace at which clients read them.

A response is an iterator of slices: each `next` does a little work and returns some bytes, perhaps none. Slices are
made in the turns that `AnswerScheduler` gives, the next one only after the one before it was sent, so a response of any
length holds one piece in memory. A response that fits in one piece is an ordinary one. Until the first piece is made
the request may still be refused; a later failure ends the connection, since half a response must not look complete.
The authorization of the reader is checked before each slice, since keys, tokens and rights may end meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import anyio
from fastapi import Response
from starlette.types import Receive, Scope, Send

from gateway.core.answer_scheduler import MAX_WAIT_SECONDS, WRITE_SECONDS, AnswerScheduler, AnswerSlot, SlotState
from gateway.core.errors import RequestError, Throttled
from gateway.core.memory_budget import MemoryBudget
from gateway.core.outbox import LOW_WATER

from .streaming import StreamedResponse

MAX_WRITE = 2 * LOW_WATER  # bytes that are written at once
STALLED_SECONDS = 60.0  # for a client to read a piece; then the response ends where it is

Result = TypeVar("Result")
Check = Callable[[], object]

logger = logging.getLogger(__name__)


async def run_in_turn(scheduler: AnswerScheduler, network: str, make: Callable[[], Result]) -> Result:
    """Call *make* in a turn of *network*, and return or raise its result; if cancelled before, never call it."""
    done = anyio.Event()
    wanted = True
    results: list[Result] = []
    errors: list[Exception] = []

    def call() -> None:
        if not wanted:
            return
        try:
            results.append(make())
        except Exception as error:
            errors.append(error)
        done.set()

    scheduler.schedule(call, network)
    try:
        await done.wait()
    finally:
        wanted = False
    if errors:
        raise errors[0]
    return results[0]


async def paced_response(
    scheduler: AnswerScheduler,
    budget: MemoryBudget | None,
    network: str,
    slices: Iterator[bytes],
    media_type: str,
    check: Check,
) -> Response:
    """Return the response that sends *slices* to *network*; `Throttled` if too many long answers are under way.

    *check* is called before each slice, and raises `RequestError` if the reader may not read it, or no longer.
    """
    slot = await _slot(scheduler, network)
    try:
        pieces = _ChunkBuilder(scheduler, network, slices, check)
        await pieces.make()
    except BaseException:
        slot.release()
        raise
    if pieces.over and len(pieces.piece) <= LOW_WATER:
        slot.release()
        return Response(pieces.piece, media_type=media_type)
    return _PacedResponse(pieces, slot, budget, media_type)


async def _slot(scheduler: AnswerScheduler, network: str) -> AnswerSlot:
    decided = anyio.Event()
    slot = scheduler.request_slot(network, decided.set)
    try:
        if slot.state is SlotState.WAITING:
            await decided.wait()
    except BaseException:
        slot.release()
        raise
    if slot.state is SlotState.REFUSED:
        raise Throttled(MAX_WAIT_SECONDS)
    return slot


class _ChunkBuilder:
    """Joins the slices of a response into pieces that are worth a write."""

    def __init__(self, scheduler: AnswerScheduler, network: str, slices: Iterator[bytes], check: Check) -> None:
        self.network = network
        self.piece = b""  # the last piece that was made, until it is sent
        self.over = False  # nothing follows it
        self._scheduler = scheduler
        self._slices = slices
        self._check = check

    async def make(self) -> None:
        """Make the next piece: at least `LOW_WATER` bytes, as whole slices, or the rest."""
        some: list[bytes] = []
        while not self.over and sum(map(len, some)) < LOW_WATER:
            part = await run_in_turn(self._scheduler, self.network, self._next)
            some.append(part or b"")
            self.over = part is None
        self.piece = b"".join(some)
        self._scheduler.charge(WRITE_SECONDS * len(self.piece))

    def discard(self) -> None:
        """Discard the rest."""
        self.piece, self._slices = b"", iter(())

    def _next(self) -> bytes | None:
        self._check()
        return next(self._slices, None)


class _PacedResponse(StreamedResponse):
    """Sends pieces; a holder of the memory budget. However it ends, it releases its slot."""

    def __init__(self, pieces: _ChunkBuilder, slot: AnswerSlot, budget: MemoryBudget | None, media_type: str) -> None:
        super().__init__(media_type, stalled_seconds=STALLED_SECONDS)
        self.network = pieces.network
        self._pieces = pieces
        self._slot = slot
        self._budget = budget

    @property
    def held_size(self) -> int:
        """Return how many bytes wait for the client."""
        return len(self._pieces.piece)

    def release_memory(self) -> None:
        """Discard them; the response ends where it is."""
        self._pieces.piece = b""
        self.abort()

    def end(self) -> None:
        """Make no further pieces."""
        self._pieces.discard()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response as fast as the client reads."""
        if self._budget is not None:
            self._budget.enter(self)
        try:
            await super().__call__(scope, receive, send)
        except RequestError as error:
            logger.warning("an answer was cut off: %s", error)
        finally:
            self._pieces.discard()
            self._slot.release()
            if self._budget is not None:
                self._budget.leave(self)

    async def write(self, send: Send) -> None:
        """Send the pieces, and the end of the response only after the last of them."""
        pieces = self._pieces
        while pieces.piece:
            for at in range(0, len(pieces.piece), MAX_WRITE):  # a transport buffers each write as a whole
                await self.send_body(send, pieces.piece[at : at + MAX_WRITE])
            pieces.piece = b""
            await pieces.make()
