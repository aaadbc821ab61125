"""A cache of decoded nodes: those likely to be the authors and parents of the next ones."""

from __future__ import annotations

from typing import Final, NamedTuple

from adapters.sprout.forest.forest import Identity, Node, Reply
from gateway.core.bounded_maps import SizedMap

MAX_CACHED: Final = 4096  # nodes, about 1 KiB each
MAX_BYTES: Final = 8 << 20  # of their contents, metadata, keys and signatures


class CachedNode(NamedTuple):
    """A node, and the canonical id of the message that it carries; None if it carries none."""

    node: Node
    message_id: str | None = None


class NodeCache:
    """Nodes by their ids; the least recently used are dropped first."""

    def __init__(self) -> None:
        self._held = SizedMap[str, CachedNode](MAX_BYTES, _size, MAX_CACHED)

    def get(self, id: str) -> CachedNode | None:
        """The node *id*; None if it is not cached."""
        return self._held.touch(id)

    def drop(self, id: str) -> None:
        """Drop the node *id*."""
        self._held.pop(id)

    def add(self, id: str, held: CachedNode) -> None:
        """Cache the node *id*."""
        self._held[id] = held


def _size(held: CachedNode) -> int:
    """The bytes of those fields of a node that may be long."""
    node = held.node
    size = len(node.metadata.blob) + len(node.signature)
    if isinstance(node, Reply):
        return size + len(node.content.blob)
    return size + len(node.name.blob) + (len(node.public_key) if isinstance(node, Identity) else 0)
