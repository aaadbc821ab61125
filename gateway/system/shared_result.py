"""Makes what is expensive for all that wait for it at once, and not more often than is allowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class SharedResult(Generic[T]):
    """The result of *make*, which no two callers run at the same time, nor within *interval* seconds of its end.

    What a thread makes is no step of the event loop, so no connection is charged for it, and yet it takes the
    interpreter from the loop: twenty programs that ask for the metrics all the time would take half of it.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], interval: float) -> None:
        self._make = make
        self._interval = interval
        self._lock = anyio.Lock()
        self._begun = 0  # how often *make* was called
        self._made: tuple[int, T] | None = None  # the last result, and its number
        self._not_before = 0.0  # (`monotonic`)

    async def get(self) -> T:
        """Return a result whose making began after this call did."""
        wanted = self._begun + 1
        async with self._lock:
            if self._made is None or self._made[0] < wanted:
                await anyio.sleep(max(0.0, self._not_before - monotonic()))
                self._begun += 1
                try:
                    self._made = self._begun, await self._make()
                finally:
                    self._not_before = monotonic() + self._interval
            return self._made[1]
