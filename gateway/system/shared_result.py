"""Makes an expensive result once for all callers that wait for it, and no more often than an interval allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class SharedResult(Generic[T]):
    """The result of *make*, which is called again no earlier than *interval* seconds after its last call has ended.

    The work of a thread is no step of the event loop, so no connection is charged for it; yet it takes the interpreter
    from the loop. Twenty programs that request the metrics all the time would take half of it.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], interval: float) -> None:
        self._make = make
        self._interval = interval
        self._lock = anyio.Lock()
        self._begun = 0  # how often *make* was called
        self._made: tuple[int, T] | None = None  # the last result, and its number
        self._not_before = 0.0  # (`monotonic`)

    async def get(self) -> T:
        """Return the result of a call of *make* that began after this call."""
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
