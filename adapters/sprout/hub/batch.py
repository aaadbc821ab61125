"""Nodes that came together, and how far they have been taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adapters.sprout.wire.codec import Frame, NodeLine, StatusCode


class NodeBatch:
    """An announce, or an answer to a question of ours (without an *id*), with the nodes that are still to be taken.

    `more` nodes of it have not arrived yet; where `asked`, something here waits for them. `sought` is what the question
    was for. Some of it is `forged`, or no node at all. Of an announce, `waits` are the ids of nodes that still wait for
    others; it is answered when none does, or at its `deadline` (ms).
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
        self.taken = not self.nodes and not unreadable  # an empty announce is fine
        self.forged = bool(unreadable)
        self.asks: dict[str, Frame] = {}
        self.waits: set[str] = set()
