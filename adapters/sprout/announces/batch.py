"""Nodes that arrived together, and how many of them were taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adapters.sprout.wire.codec import Frame, NodeLine, StatusCode


class NodeBatch:
    """An announce, or a response to the gateway (without an *id*), with the nodes that are still to be taken.

    `more` nodes of it have not arrived yet; `asked` tells that a held node needs them; `sought` lists the requested
    ids. `forged` tells that some nodes are forged or unreadable. Of an announce, `waits` are the ids of nodes that
    still wait for others; it is answered when none does, or at its `deadline` (ms).
    """

    more = 0
    deadline = 0
    waited = False
    asked = False
    sought: tuple[str, ...] = ()
    seq = 0
    status: int = StatusCode.OK

    def __init__(self, nodes: Iterable[NodeLine], unreadable: int, id: int | None = None) -> None:
        self.id = id
        self.nodes = deque(nodes)
        self.taken = not self.nodes and not unreadable  # an empty announce is valid
        self.forged = bool(unreadable)
        self.asks: dict[str, Frame] = {}
        self.waits: set[str] = set()
