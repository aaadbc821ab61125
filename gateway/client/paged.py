"""An async iterator over what comes in pages."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Paged(AsyncIterator[T], Generic[T]):
    """Yields the items of each page; *fetch* returns the next page, and None after the last.

    It holds no connection, so it may be left at any time.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Sequence[T] | None]]) -> None:
        self._fetch = fetch
        self._items: deque[T] = deque()

    async def __anext__(self) -> T:
        while not self._items:
            if (page := await self._fetch()) is None:
                raise StopAsyncIteration
            self._items.extend(page)
        return self._items.popleft()
