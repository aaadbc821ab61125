"""Mappings that forget their oldest entries to stay within a bound.

Laws of this file. Setting a key makes its entry the newest, and so does `touch`; other reads do not. Iteration is
oldest first. `on_drop` is called for entries that are dropped, not for those that `pop` removes.

An `OrderedDict` is a member, not the base class: a subclass with a `__setitem__` of its own takes twice as long to set
a key. `get`, which is called for each message, is the dictionary's own.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

CACHED_CHANNELS = 1 << 14  # channels, for each of which a value that follows from the name is cached
NO_LIMIT = sys.maxsize  # of entries; the owner drops them by `drop_while`


class BoundedMap(Generic[K, V]):
    """A mapping of at most *limit* entries; *on_drop* is called with each entry that is dropped."""

    def __init__(self, limit: int = NO_LIMIT, on_drop: Callable[[K, V], object] | None = None) -> None:
        self.limit = limit
        self._on_drop = on_drop
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.get: Callable[[K], V | None] = self._entries.get

    def __setitem__(self, key: K, value: V) -> None:
        entries = self._entries
        entries[key] = value
        entries.move_to_end(key)
        if len(entries) > self.limit:
            self.drop_oldest()

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> ItemsView[K, V]:
        """The entries, the oldest first."""
        return self._entries.items()

    def touch(self, key: K) -> V | None:
        """The value of *key*, whose entry becomes the newest; None if there is none."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def pop(self, key: K) -> V | None:
        """Remove *key* and return its value; None if there is none."""
        return self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove every entry."""
        self._entries.clear()

    def drop_oldest(self) -> None:
        """Drop the oldest entry; raises `KeyError` if there is none."""
        key, value = self._entries.popitem(last=False)
        if self._on_drop is not None:
            self._on_drop(key, value)

    def drop_while(self, is_over: Callable[[V], bool]) -> None:
        """Drop the oldest entries as long as *is_over* is true of their values."""
        while self._entries and is_over(next(iter(self._entries.values()))):
            self.drop_oldest()


class SizedMap(BoundedMap[K, V]):
    """A mapping of at most *limit* entries and *max_size* bytes; *size_of* returns the bytes of a value.

    A value that takes more than *max_size* by itself is not kept.
    """

    def __init__(
        self,
        max_size: int,
        size_of: Callable[[V], int],
        limit: int = NO_LIMIT,
        on_drop: Callable[[K, V], object] | None = None,
    ) -> None:
        super().__init__(limit, on_drop)
        self.max_size = max_size
        self.size = 0
        self._size_of = size_of

    def __setitem__(self, key: K, value: V) -> None:
        entries = self._entries
        if (before := entries.pop(key, None)) is not None:
            self.size -= self._size_of(before)
        size = self._size_of(value)
        if size <= self.max_size:
            self.size += size
            entries[key] = value
            while self.size > self.max_size or len(entries) > self.limit:
                self.drop_oldest()

    def pop(self, key: K) -> V | None:
        """Remove *key* and return its value; None if there is none."""
        value = super().pop(key)
        if value is not None:
            self.size -= self._size_of(value)
        return value

    def clear(self) -> None:
        """Remove every entry."""
        super().clear()
        self.size = 0

    def drop_oldest(self) -> None:
        """Drop the oldest entry; raises `KeyError` if there is none."""
        if self._entries:
            self.size -= self._size_of(next(iter(self._entries.values())))
        super().drop_oldest()
