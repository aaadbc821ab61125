"""The nodes that children are likely to be asked for next, as they were read."""

from __future__ import annotations

from typing import Final, NamedTuple

from adapters.sprout.forest.forest import Identity, Node, Reply
from gateway.core.bounded import SizedMap

MAX_CACHED: Final = 4096  # nodes, mostly about 1 KiB each
MAX_BYTES: Final = 8 << 20  # of what they say and how they are signed


class CachedNode(NamedTuple):
    """A node that is held, and the canonical id of the message that it is, None where it is none."""

    node: Node
    message: str | None = None


class NodeCache:
    """Nodes by their ids; those that were not asked for longest go first."""

    def __init__(self) -> None:
        self._held = SizedMap[str, CachedNode](MAX_BYTES, _size, MAX_CACHED)

    def get(self, id: str) -> CachedNode | None:
        """The node *id*, if it is kept."""
        return self._held.touch(id)

    def drop(self, id: str) -> None:
        """Keep the node *id* no longer."""
        self._held.pop(id)

    def add(self, id: str, held: CachedNode) -> None:
        """Keep the node *id*."""
        self._held[id] = held


def _size(held: CachedNode) -> int:
    """The bytes of a node's fields that may be long."""
    node = held.node
    size = len(node.metadata.blob) + len(node.signature)
    if isinstance(node, Reply):
        return size + len(node.content.blob)
    return size + len(node.name.blob) + (len(node.public_key) if isinstance(node, Identity) else 0)
