"""Mappings that forget their oldest entries to stay within a bound.

Laws of this file. Setting a key makes its entry the newest, and so does `use`; reading in any other way does not. The
order of iteration is oldest first. `forget` is told of what was dropped, not of what was taken out by `del` or `pop`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

NO_LIMIT = sys.maxsize  # of entries, where the owner says by `drop_while` which ones may leave


class BoundedMap(OrderedDict[K, V]):
    """A mapping of at most *limit* entries; *forget* is called with each entry that is dropped."""

    def __init__(self, limit: int = NO_LIMIT, forget: Callable[[K, V], object] | None = None) -> None:
        super().__init__()
        self.limit = limit
        self._forget = forget

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.limit:
            self.drop_oldest()

    def use(self, key: K) -> V | None:
        """The value of *key*, whose entry becomes the newest; None if there is none."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def drop_oldest(self) -> None:
        """Drop the oldest entry; `StopIteration` if there is none."""
        key = next(iter(self))
        value = self.pop(key)
        if self._forget is not None:
            self._forget(key, value)

    def drop_while(self, is_over: Callable[[V], bool]) -> None:
        """Drop the oldest entries until *is_over* is false for the value of one, which stays."""
        while self and is_over(self[next(iter(self))]):
            self.drop_oldest()


class SizedMap(BoundedMap[K, V]):
    """A mapping of at most *limit* entries and *max_size* bytes, of which a value takes *size_of* it.

    A value that takes more than *max_size* by itself is not kept.
    """

    def __init__(
        self,
        max_size: int,
        size_of: Callable[[V], int],
        limit: int = NO_LIMIT,
        forget: Callable[[K, V], object] | None = None,
    ) -> None:
        super().__init__(limit, forget)
        self.max_size = max_size
        self.size = 0
        self._size_of = size_of

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        size = self._size_of(value)
        if size <= self.max_size:
            self.size += size
            super().__setitem__(key, value)
            while self.size > self.max_size:
                self.drop_oldest()

    def __delitem__(self, key: K) -> None:
        size = self._size_of(self[key])
        super().__delitem__(key)
        self.size -= size

    def pop(self, key: K, *default: Any) -> Any:
        """Take out the value of *key*; without one, *default* if that is given, else `KeyError`."""
        if default and key not in self:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self, last: bool = True) -> tuple[K, V]:
        """Take out the newest entry, or the oldest."""
        key = next(reversed(self) if last else iter(self))
        return key, self.pop(key)

    def clear(self) -> None:
        """Take out every entry."""
        super().clear()
        self.size = 0
