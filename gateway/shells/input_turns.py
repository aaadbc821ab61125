"""Turns for the input of connections that have a task: on asyncio they share the loop with all others.

`gateway.shells.connection` does the same for connections without one. A connection that has used more than its share of
the loop takes its turns with all such connections (`gateway.shells.turns`), and those that did not come first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

import sniffio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from .cpu_time import cpu_since, cpu_time
from .turns import LoopUsage, turns_of

SLICE = 0.001  # seconds of input after which others may have their turn, where turns are not shared
PORTION = 512  # bytes of a stream that are handled at once: so many bytes of its shortest lines take some ms
BUSY_PORTION = 128  # the same of a connection that has used more than its share

SHORT_READ = 256  # bytes; fewer may have been read without waiting, from a TLS record
SHORT_READS = 32  # after which others have a turn

Step = Callable[[], bool]  # handles a little of the input; returns whether more is left that can be handled now


class InputTurns:
    """The turns of one connection, on any loop: a slice of its input in each turn of the loop."""

    portion = PORTION
    _short_reads = 0

    async def read(self, stream: ByteStream) -> bytes:
        """Read what has arrived on *stream*; raises `anyio.EndOfStream` at its end.

        TLS hands over thousands of short records, which arrived together, without waiting once.
        """
        data = await stream.receive()
        if len(data) < SHORT_READ:
            self._short_reads += 1
            if self._short_reads >= SHORT_READS:
                self._short_reads = 0
                await checkpoint()
        return data

    async def run(self, step: Step) -> None:
        """Call *step* until nothing is left."""
        while self._work(step, SLICE):
            await checkpoint()

    def take_seconds(self) -> float:
        """Return the seconds that all steps took since this was last asked; 0 where turns are not shared."""
        return 0.0

    def _work(self, step: Step, seconds: float) -> bool:
        """Call *step* for so many *seconds*, at least once; return whether more is left."""
        deadline = perf_counter() + seconds
        while more := step():
            if perf_counter() >= deadline:
                break
        return more


class SharedInputTurns(InputTurns):
    """The turns of one connection on asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns = turns_of(loop)
        self._usage = LoopUsage()
        self._step: Step | None = None  # what waits for a turn
        self._taken: asyncio.Future[bool] | None = None  # whether more is left after the turn
        self._seconds = 0.0  # see `take_seconds`

    @property
    def portion(self) -> int:  # type: ignore[override]
        """The bytes of a stream that are handled at once."""
        return BUSY_PORTION if self._usage.busy else PORTION

    async def run(self, step: Step) -> None:
        """Call *step* until nothing is left, in turns if that takes long."""
        more = True
        while more:
            if self._usage.busy:
                more = await self._turn(step)
                continue
            self._turns.other_arrivals += 1
            if more := self._measured(step):
                await checkpoint()

    def take_seconds(self) -> float:
        """Return the seconds that all steps took since this was last asked, while others had input."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def take_turn(self) -> None:
        """Handle a slice of what waits for a turn, unless its connection has ended."""
        step, taken, self._step = self._step, self._taken, None
        if step is None or taken is None or taken.done():
            return
        try:
            taken.set_result(self._measured(step))
        except Exception as error:  # the task of the connection deals with it
            taken.set_exception(error)

    async def _turn(self, step: Step) -> bool:
        self._step, self._taken = step, self._loop.create_future()
        self._turns.add(self, self._usage.priority)
        return await self._taken

    def _measured(self, step: Step) -> bool:
        began, begin = cpu_time(), perf_counter()
        more = self._work(step, self._turns.budget_seconds)
        now = perf_counter()
        used = self._usage.add(now - begin, now, cpu_since(began))
        self._turns.spend(now - begin)
        self._seconds += used if self._turns.shared else 0.0
        return more


def input_turns() -> InputTurns:
    """Return the turns of a new connection on the running loop."""
    if sniffio.current_async_library() == "asyncio":
        return SharedInputTurns(asyncio.get_running_loop())
    return InputTurns()
