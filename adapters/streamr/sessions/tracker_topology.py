"""Which nodes of a stream partition are to be connected with which: what a tracker tells them.

Nodes stand in a circle, in the order in which they came. Each is connected with the nearest `NEIGHBOURS` of them, half
on either side: so nobody is left alone, and no node carries many. Whoever comes or goes touches those nearest to it and
nobody else, and that costs the same however many stand there.
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


class Circle(Generic[Node]):
    """The nodes of one stream partition."""

    def __init__(self) -> None:
        self._next: dict[Node, Node] = {}
        self._before: dict[Node, Node] = {}

    def __len__(self) -> int:
        return len(self._next)

    def add(self, node: Node) -> None:
        """Put *node*, which is not there, behind the last."""
        first = next(iter(self._next), node)
        last = self._before.get(first, node)
        self._join(last, node)
        self._join(node, first)

    def remove(self, node: Node) -> None:
        """Take *node* out."""
        before, behind = self._before.pop(node), self._next.pop(node)
        if before is not node:
            self._join(before, behind)

    def neighbours(self, node: Node) -> list[Node]:
        """Whom *node* is to be connected with; nobody where it does not stand here."""
        found: dict[Node, None] = {}
        ahead = back = node
        for _ in range(NEIGHBOURS // 2 if node in self._next else 0):
            ahead, back = self._next[ahead], self._before[back]
            found |= {ahead: None, back: None}
        found.pop(node, None)
        return list(found)

    def _join(self, one: Node, other: Node) -> None:
        self._next[one], self._before[other] = other, one


class Topology(Generic[Node]):
    """Who reported which stream partitions."""

    def __init__(self) -> None:
        self._circles: dict[StreamPart, Circle[Node]] = {}
        self._parts: dict[Node, dict[StreamPart, None]] = {}

    def parts(self, node: Node) -> dict[StreamPart, None]:
        """What *node* reported; not to be changed."""
        return self._parts.get(node, {})

    def neighbours(self, node: Node, part: StreamPart) -> list[Node]:
        """Whom *node* is to be connected with for *part*."""
        circle = self._circles.get(part)
        return [] if circle is None else circle.neighbours(node)

    def report(self, node: Node, parts: Iterable[StreamPart]) -> dict[tuple[Node, StreamPart], None]:
        """Take *parts* for all that *node* has; return which others, for which of them, have new neighbours now."""
        before, now = self.parts(node), dict.fromkeys(parts)
        changed: dict[tuple[Node, StreamPart], None] = {}
        for part in before.keys() - now.keys():
            changed |= self._leave(part, node)
        for part in now.keys() - before.keys():
            changed |= self._enter(part, node)
        if now:
            self._parts[node] = now
        else:
            self._parts.pop(node, None)
        return changed

    def _enter(self, part: StreamPart, node: Node) -> dict[tuple[Node, StreamPart], None]:
        circle = self._circles.setdefault(part, Circle())
        circle.add(node)
        return {(each, part): None for each in circle.neighbours(node)}

    def _leave(self, part: StreamPart, node: Node) -> dict[tuple[Node, StreamPart], None]:
        circle = self._circles[part]
        near = circle.neighbours(node)
        circle.remove(node)
        if not circle:
            del self._circles[part]
        return {(each, part): None for each in near}
