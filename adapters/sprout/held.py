"""The nodes that children are likely to be asked for next, as they were read."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from .forest import Identity, Node, Reply

MAX_HELD: Final = 4096  # nodes, mostly about 1 KiB each
MAX_BYTES: Final = 8 << 20  # of what they say and how they are signed


class Held(NamedTuple):
    """A node that is held, and the canonical id of the message that it is, None where it is none."""

    node: Node
    message: str | None = None


class Recently:
    """Nodes by their ids; those that were not asked for longest go first."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._size = 0

    def get(self, id: str) -> Held | None:
        """The node *id*, if it is kept."""
        held = self._held.get(id)
        if held is not None:
            self._held.move_to_end(id)
        return held

    def drop(self, id: str) -> None:
        """Keep the node *id* no longer."""
        if id in self._held:
            self._size -= _size(self._held.pop(id).node)

    def add(self, id: str, held: Held) -> None:
        """Keep the node *id*."""
        self.drop(id)
        self._held[id] = held
        self._size += _size(held.node)
        while self._size > MAX_BYTES or len(self._held) > MAX_HELD:
            self._size -= _size(self._held.popitem(last=False)[1].node)


def _size(node: Node) -> int:
    """The bytes of its fields that may be long."""
    size = len(node.metadata.blob) + len(node.signature)
    if isinstance(node, Reply):
        return size + len(node.content.blob)
    return size + len(node.name.blob) + (len(node.public_key) if isinstance(node, Identity) else 0)
