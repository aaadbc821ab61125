"""A queue for work that is done one piece at a time: networks take turns, and none keeps the others out.

Laws of this file. The next turn is that of another network, as long as one waits. If too many wait, the one that came
last is refused of the network with most of them, so a network that waits with few is let in.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from gateway.core.errors import Throttled

RETRY_SECONDS = 1.0  # after which clients are asked to try again, if too many wait
NO_LIMIT = sys.maxsize


class _QueuedRequest:
    """A request that waits for its turn: *decided* is set once that has come, or it is *refused*."""

    def __init__(self) -> None:
        self.decided = anyio.Event()
        self.refused = False


class FairQueue:
    """Gives turns to networks, one at a time and round-robin; at most *max_waiting* wait for one."""

    def __init__(self, max_waiting: int = NO_LIMIT) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[str, deque[_QueuedRequest]] = {}  # by network, the next one first
        self._busy = False

    @asynccontextmanager
    async def turn(self, network: str) -> AsyncIterator[None]:
        """Wait for a turn of *network*, which ends with the context; raise `Throttled` if too many wait."""
        if self._busy:
            await self._wait(network)
        self._busy = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, network: str) -> None:
        self._make_room(network)
        waiter = _QueuedRequest()
        self._waiting.setdefault(network, deque()).append(waiter)
        try:
            await waiter.decided.wait()
        except BaseException:  # the waiting request was cancelled
            if not waiter.decided.is_set():
                self._leave(network, waiter)
            elif not waiter.refused:
                self._pass_on()
            raise
        if waiter.refused:
            raise Throttled(RETRY_SECONDS)

    def _make_room(self, network: str) -> None:
        """Refuse the last waiter of the network with most, or raise `Throttled` if *network* would have as many."""
        waiting = self._waiting
        if sum(map(len, waiting.values())) < self._max_waiting:
            return
        longest = max(waiting.values(), key=len, default=deque[_QueuedRequest]())
        if len(longest) <= len(waiting.get(network, ())) + 1:
            raise Throttled(RETRY_SECONDS)
        last = longest.pop()
        last.refused = True
        last.decided.set()

    def _leave(self, network: str, waiter: _QueuedRequest) -> None:
        theirs = self._waiting[network]
        theirs.remove(waiter)
        if not theirs:
            del self._waiting[network]

    def _pass_on(self) -> None:
        """Give the turn to the first waiter of the next network, and move that network to the end of the ring."""
        self._busy = bool(self._waiting)
        if self._busy:
            network = next(iter(self._waiting))
            theirs = self._waiting.pop(network)
            theirs.popleft().decided.set()
            if theirs:
                self._waiting[network] = theirs
