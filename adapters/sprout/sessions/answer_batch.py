"""A response to the gateway's own request: its nodes, and what was found in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adapters.sprout.arrivals.batch import NodeBatch
from adapters.sprout.forest.forest import Reply
from adapters.sprout.wire.codec import NodeLine


class AnswerBatch(NodeBatch):
    """A response, and the ids of nodes that were cut from it and are still to be requested."""

    cut: tuple[str, ...] = ()

    def __init__(self, nodes: Iterable[NodeLine]) -> None:
        super().__init__(nodes, 0)
        self.authors: dict[str, None] = {}  # that are neither here nor were requested before
        self.replies: deque[tuple[str, Reply]] = deque()  # whose ancestors are not looked for yet
        self.ids = {line.id for line in self.nodes}
        self.scanned = 0  # of the nodes
        self.authors_requested = False

    def drop(self) -> None:
        """Take none of its nodes."""
        self.nodes.clear()
        self.cut = ()
