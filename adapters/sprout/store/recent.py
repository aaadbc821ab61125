"""The newest nodes that were taken, so that one that has just been made needs no look at the tables."""

from __future__ import annotations

from typing import Final

from gateway.core.bounded import BoundedMap

MAX_RECENT: Final = 1 << 15  # nodes, about 250 bytes each


class RecentNodes:
    """Ids and sequences of the nodes noted last; all others were made at *older* (ms) or before."""

    def __init__(self, older: int) -> None:
        self._older = older
        self._nodes = BoundedMap[str, tuple[int, int]](forget=self._forget)

    def add(self, id: str, seq: int, created: int) -> None:
        """The node *id*, made at *created* (ms), is logged at *seq*."""
        self._nodes[id] = seq, created

    def drop(self, id: str) -> None:
        """The node *id* is not held any more."""
        self._nodes.pop(id)

    def seq(self, id: str) -> int | None:
        """Where the node *id* stands; None where it is none of these."""
        found = self._nodes.get(id)
        return None if found is None else found[0]

    def may_be_older(self, created: int) -> bool:
        """Whether a node made at *created* (ms) may be held, though it is none of these."""
        return created <= self._older

    def prune(self, applied: int) -> None:
        """Forget the oldest of too many, but none that the tables do not know: those go up to *applied*."""
        self._nodes.drop_while(lambda node: len(self._nodes) > MAX_RECENT and node[0] <= applied)

    def _forget(self, _id: str, node: tuple[int, int]) -> None:
        self._older = max(self._older, node[1])
