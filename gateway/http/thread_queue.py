"""A queue for work in threads: one call at a time, and pauses between the calls while others are served.

The work of a thread is no step of the event loop, so no connection is charged for it; yet it takes the interpreter from
the loop, and whoever is served meanwhile waits longer. SQLite does its work without the interpreter, so searches of
messages need no such pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic, thread_time
from typing import Final, TypeVar

import anyio.to_thread
from anyio import sleep

from gateway.core.errors import Unavailable
from gateway.runtime import Gateway

from .fair_queue import FairQueue

SHARE: Final = 0.05  # of the time that the calls of a queue use while several networks are served
MAX_PAUSE: Final = 5.0  # seconds
STEP: Final = 0.2  # seconds, after which a pause notices that the gateway stops
STOPS: Final = "the gateway stops"

T = TypeVar("T")


class ThreadQueue:
    """Runs calls in a thread, one at a time; networks take turns, and at most *max_waiting* requests wait."""

    def __init__(self, max_waiting: int) -> None:
        self._queue = FairQueue(max_waiting)
        self._not_before = 0.0  # (`monotonic`) when the next call may begin, if several networks are served

    async def run(self, gateway: Gateway, network: str, call: Callable[[], T]) -> T:
        """Return what *call* returns, in a turn of *network*.

        While *gateway* serves other networks, the calls use `SHARE` of the time at most. Raises `Throttled` if too many
        wait, and `Unavailable` if the gateway stops first.
        """
        async with self._queue.turn(network):
            read_pacer = gateway.bus.read_pacer
            if read_pacer is not None and read_pacer.serves_others(network):
                await self._pause(gateway)
            if not gateway.ready:
                raise Unavailable(STOPS)
            return await anyio.to_thread.run_sync(partial(self._timed, call))

    async def _pause(self, gateway: Gateway) -> None:
        while (left := self._not_before - monotonic()) > 0 and gateway.ready:
            await sleep(min(left, STEP))

    def _timed(self, call: Callable[[], T]) -> T:
        begin = thread_time()
        try:
            return call()
        finally:
            used = thread_time() - begin
            self._not_before = monotonic() + min(MAX_PAUSE, used * (1 / SHARE - 1))
