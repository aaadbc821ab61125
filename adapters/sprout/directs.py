"""The direct messages of the last minutes: who said them, so that a reply to one finds its way back.

Nothing here is ever on disk. An entry is good for `DIRECT_MEMORY`; it is remembered longer, so that a reply that
comes too late can be told from one to a node that nobody knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.bus import DIRECT_MEMORY
from gateway.message import LATE

from .forest import Node

MAX_DIRECTS: Final = 10_000
REMEMBERED: Final = 12 * DIRECT_MEMORY  # ms


class Direct(NamedTuple):
    """A direct message: its node, the number of the peer that said it, and when (ms)."""

    node: Node
    sender: int
    time: int


class Directs:
    """Direct messages by the ids of their nodes; *clock* gives ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since = clock()
        self._directs: OrderedDict[str, Direct] = OrderedDict()

    def add(self, id: str, node: Node, sender: int) -> None:
        """The node *id* has been handed over."""
        now = self._clock()
        self._directs[id] = Direct(node, sender, now)
        while len(self._directs) > MAX_DIRECTS or next(iter(self._directs.values())).time < now - REMEMBERED:
            self._directs.popitem(last=False)

    def find(self, id: str) -> Direct | None:
        """The direct message *id*, good or expired."""
        return self._directs.get(id)

    def may_be_copy(self, created: int) -> bool:
        """Whether a node made at *created* (ms) may have been handed over and be forgotten: old, or of a former run."""
        return created < max(self._since, self._clock() - LATE)

    def good(self, direct: Direct) -> bool:
        """Whether somebody may still answer *direct*."""
        return direct.time >= self._clock() - DIRECT_MEMORY
