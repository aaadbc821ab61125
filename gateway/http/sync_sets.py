"""The sets of messages that are compared with those of another gateway: read once, cached, and kept up to date.

A thread reads and queries them, one request at a time: a million messages take some seconds to read, and a fraction of
a second to query. A set is cached until others are needed or memory is short. It is also saved on disk, so it need not
be read again the next time, even after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from time import monotonic, sleep
from typing import Final, TypeVar

from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import Unavailable
from gateway.reconciliation.items import ItemSet
from gateway.reconciliation.reading import read_items
from gateway.reconciliation.saved import MessageSet, SavedSets
from gateway.runtime import Gateway

from .problems import Problem
from .thread_queue import ThreadQueue

MAX_SETS: Final = 2  # kept at a time
MAX_ITEMS: Final = 2_000_000  # messages of one set, which take 110 MB
MAX_UNSAVED: Final = 20_000  # messages; reading as many again takes a seventh of a second
FOLDER: Final = "sync"  # in the data directory; backups leave it out
MAX_WAITING: Final = 32  # requests that wait for the one under way
INDEX_SECONDS: Final = 10.0  # for the index to catch up with the disk; it is a tenth of a second behind
TOO_MANY: Final = f"these channels have more than {MAX_ITEMS:,} messages; compare fewer channels at a time"

T = TypeVar("T")


class MessageSets:
    """The sets that were asked for last; a holder of the memory budget."""

    network = ""  # they belong to no single network

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._queue = ThreadQueue(MAX_WAITING)
        self._sets = BoundedMap[frozenset[str], MessageSet](MAX_SETS)

    @cached_property
    def _saved(self) -> SavedSets:
        gateway = self._gateway  # it has started by now
        return SavedSets(gateway.settings.data / FOLDER, gateway.index.path, gateway.log.segments)

    @property
    def held_size(self) -> int:
        """About how many bytes are kept."""
        return sum(kept.items.size for _, kept in list(self._sets.items()))

    def release_memory(self) -> None:
        """Forget all sets; a request under way continues with those that it has."""
        self._sets = BoundedMap(MAX_SETS)

    async def use(self, network: str, channels: frozenset[str], call: Callable[[ItemSet], T]) -> T:
        """Return what *call* makes of the messages of *channels* that are on disk; it runs in a thread.

        It waits for a turn of *network*. Raises `Problem` if the messages are too many, `Throttled` or `Unavailable`.
        """
        try:
            return await self._queue.run(self._gateway, network, partial(self._use, channels, call))
        finally:
            self._gateway.budget.enter(self)

    def _wait_for_index(self) -> None:
        index, goal = self._gateway.index, self._gateway.index.synced_seq
        deadline = monotonic() + INDEX_SECONDS
        while index.level < goal and index.trouble is None and monotonic() < deadline:
            sleep(0.01)
        if index.level < goal or index.trouble is not None:
            raise Unavailable(index.trouble or "the index is behind the log")

    def _use(self, channels: frozenset[str], call: Callable[[ItemSet], T]) -> T:
        self._wait_for_index()
        sets, index = self._sets, self._gateway.index
        level, first_kept = index.level, index.first_kept
        kept = sets.pop(channels) or self._grown(sets, channels, level, first_kept)
        kept.remove_below(first_kept)
        self._read(kept, channels, kept.level, level)
        kept.level = level
        sets[channels] = kept
        if kept.unsaved >= MAX_UNSAVED:
            self._saved.save(channels, kept)
        return call(kept.items)

    def _grown(
        self, sets: BoundedMap[frozenset[str], MessageSet], channels: frozenset[str], level: int, first_kept: int
    ) -> MessageSet:
        """A set that is kept or saved and has some of *channels*, with the others added; an empty one if none is."""
        some = max((each for each in sets if each < channels), key=len, default=frozenset[str]())
        if (found := self._saved.load(channels, len(some), level, first_kept)) is not None:
            some, kept = found
        else:
            kept = (sets.pop(some) if some else None) or MessageSet()
        self._read(kept, channels - some, 0, kept.level)
        return kept

    def _read(self, kept: MessageSet, channels: frozenset[str], after: int, until: int) -> None:
        if after >= until or not channels:
            return
        for items in read_items(self._gateway.index.path, self._gateway.log.segments, channels, after, until):
            kept.add(items)
            if len(kept.items) > MAX_ITEMS:
                raise Problem("request-refused", TOO_MANY)
