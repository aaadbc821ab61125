"""Which nodes of a stream partition are to be connected with which: what a tracker tells them.

Nodes stand in a circle, in the order in which they came. Each is connected with the nearest `NEIGHBOURS` of them, half
on either side: so nobody is left alone, and no node carries many. What changes touches few of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

NEIGHBOURS = 4  # connections of a node for one stream partition, as genuine trackers have it

Node = TypeVar("Node")


class StreamPart(NamedTuple):
    """A partition of a stream."""

    stream_id: str
    partition: int


class Topology(Generic[Node]):
    """Who reported which stream partitions."""

    def __init__(self) -> None:
        self._nodes: dict[StreamPart, dict[Node, None]] = {}
        self._parts: dict[Node, dict[StreamPart, None]] = {}

    def parts(self, node: Node) -> list[StreamPart]:
        """What *node* reported."""
        return list(self._parts.get(node, ()))

    def report(self, node: Node, parts: Iterable[StreamPart]) -> dict[tuple[Node, StreamPart], list[Node]]:
        """Take *parts* for all that *node* has; return who, for which of them, is to be connected with whom.

        Those are the others whose neighbours are other ones now, and *node* itself for all that it has.
        """
        before, now = self._parts.get(node, {}), dict.fromkeys(parts)
        told: dict[tuple[Node, StreamPart], list[Node]] = {}
        for part in before.keys() - now.keys():
            told |= self._change(part, node, member=False)
        for part in now:
            if part not in before:
                told |= self._change(part, node, member=True)
            told[node, part] = neighbours(list(self._nodes[part]), node)
        if now:
            self._parts[node] = now
        else:
            self._parts.pop(node, None)
        return told

    def _change(self, part: StreamPart, node: Node, *, member: bool) -> dict[tuple[Node, StreamPart], list[Node]]:
        nodes = self._nodes.setdefault(part, {})
        before = list(nodes)
        if member:
            nodes[node] = None
        else:
            del nodes[node]
        now = list(nodes)
        if not now:
            del self._nodes[part]
        near = neighbours(now if member else before, node)  # whoever stands further away stands as before
        changed = (each for each in near if set(neighbours(before, each)) != set(neighbours(now, each)))
        return {(each, part): neighbours(now, each) for each in changed}


def neighbours(circle: list[Node], node: Node) -> list[Node]:
    """Whom *node* is to be connected with in a *circle* that it may be in."""
    if node not in circle:
        return []
    size, at = len(circle), circle.index(node)
    half = NEIGHBOURS // 2
    steps = [step for distance in range(1, half + 1) for step in (distance, -distance)]
    return list(dict.fromkeys(circle[(at + step) % size] for step in steps if circle[(at + step) % size] is not node))
