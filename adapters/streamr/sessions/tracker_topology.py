"""The topology that a tracker gives to nodes: which nodes of a stream partition connect to which.

Nodes stand in a ring, in the order in which they came. Each is connected with the nearest `NEIGHBOURS` of them, half
side: so no node is isolated, and none has many connections. A node that joins or leaves affects only those nearest to
it, at a cost that does not depend on the size of the ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

NEIGHBOURS = 4  # connections of a node for one stream partition, as genuine trackers have it

Node = TypeVar("Node")


class StreamPart(NamedTuple):
    """A partition of a stream."""

    stream_id: str
    partition: int


class Ring(Generic[Node]):
    """The nodes of one stream partition, in the order in which they joined."""

    def __init__(self) -> None:
        self._next: dict[Node, Node] = {}
        self._previous: dict[Node, Node] = {}

    def __len__(self) -> int:
        return len(self._next)

    def add(self, node: Node) -> None:
        """Add *node*, which is not in the ring, after the last."""
        first = next(iter(self._next), node)
        last = self._previous.get(first, node)
        self._join(last, node)
        self._join(node, first)

    def remove(self, node: Node) -> None:
        """Remove *node*."""
        before, behind = self._previous.pop(node), self._next.pop(node)
        if before is not node:
            self._join(before, behind)

    def neighbours(self, node: Node) -> list[Node]:
        """The nodes that *node* connects to; none if it is not in the ring."""
        found: dict[Node, None] = {}
        ahead = back = node
        for _ in range(NEIGHBOURS // 2 if node in self._next else 0):
            ahead, back = self._next[ahead], self._previous[back]
            found |= {ahead: None, back: None}
        found.pop(node, None)
        return list(found)

    def _join(self, one: Node, other: Node) -> None:
        self._next[one], self._previous[other] = other, one


class Topology(Generic[Node]):
    """The stream partitions that each node reported, and the ring of each partition."""

    def __init__(self) -> None:
        self._rings: dict[StreamPart, Ring[Node]] = {}
        self._parts: dict[Node, dict[StreamPart, None]] = {}

    def parts(self, node: Node) -> dict[StreamPart, None]:
        """The partitions that *node* reported; not to be changed."""
        return self._parts.get(node, {})

    def neighbours(self, node: Node, part: StreamPart) -> list[Node]:
        """The nodes that *node* connects to for *part*."""
        ring = self._rings.get(part)
        return [] if ring is None else ring.neighbours(node)

    def report(self, node: Node, parts: Iterable[StreamPart]) -> Iterator[tuple[StreamPart, list[Node]]]:
        """Set the partitions of *node*, one at each step; yield each with the other nodes whose neighbours changed."""
        now = dict.fromkeys(parts)
        own = self._parts.setdefault(node, {})
        for part in own.keys() - now.keys():
            del own[part]
            yield part, self._leave(part, node)
        for part in now.keys() - own.keys():
            own[part] = None
            yield part, self._enter(part, node)
        if not own:
            del self._parts[node]

    def _enter(self, part: StreamPart, node: Node) -> list[Node]:
        ring = self._rings.setdefault(part, Ring())
        ring.add(node)
        return ring.neighbours(node)

    def _leave(self, part: StreamPart, node: Node) -> list[Node]:
        ring = self._rings[part]
        near = ring.neighbours(node)
        ring.remove(node)
        if not ring:
            del self._rings[part]
        return near
