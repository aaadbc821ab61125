"""The newest nodes in memory, so that a node that was just created is looked up without the tables."""

from __future__ import annotations

from typing import Final

from gateway.core.bounded_maps import BoundedMap

MAX_RECENT: Final = 1 << 15  # nodes, about 250 bytes each


class RecentNodes:
    """Ids and sequences of the nodes added last; all other nodes were created at *others_until_ms* or before."""

    def __init__(self, others_until_ms: int) -> None:
        self._others_until_ms = others_until_ms
        self._nodes = BoundedMap[str, tuple[int, int]](on_drop=self._forget)

    def add(self, id: str, seq: int, created: int) -> None:
        """Add the node *id*, created at *created* (ms) and logged at *seq*."""
        self._nodes[id] = seq, created

    def drop(self, id: str) -> None:
        """Drop the node *id*, which is no longer held."""
        self._nodes.pop(id)

    def seq(self, id: str) -> int | None:
        """The sequence of the node *id*; None if it is not among these nodes."""
        found = self._nodes.get(id)
        return None if found is None else found[0]

    def may_be_older(self, created: int) -> bool:
        """Whether the tables could hold a node created at *created* (ms) that is not among these nodes."""
        return created <= self._others_until_ms

    def prune(self, applied: int) -> None:
        """Drop the oldest nodes beyond `MAX_RECENT` that the tables have: those up to the sequence *applied*."""
        self._nodes.drop_while(lambda node: len(self._nodes) > MAX_RECENT and node[0] <= applied)

    def _forget(self, _id: str, node: tuple[int, int]) -> None:
        self._others_until_ms = max(self._others_until_ms, node[1])
