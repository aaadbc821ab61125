"""Nodes that arrived together, and how many of them were taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from adapters.sprout.wire.codec import Frame, NodeLine, StatusCode


class NodeBatch:
    """An announce, or a response to the gateway (without an *id*), with the nodes that are still to be taken.

    An announce is answered when no node waits for others any more, or at its `deadline`.
    """

    more = 0  # nodes that have not arrived yet
    deadline = 0  # ms
    has_waited = False
    requested_by_child = False  # whether a held node needs these
    requested_ids: tuple[str, ...] = ()
    seq = 0
    status: int = StatusCode.OK

    def __init__(self, nodes: Iterable[NodeLine], unreadable: int, id: int | None = None) -> None:
        self.id = id
        self.nodes = deque(nodes)
        self.taken = not self.nodes and not unreadable  # an empty announce is valid
        self.forged = bool(unreadable)  # whether some nodes are forged or unreadable
        self.pending_requests: dict[str, Frame] = {}  # by the id that is missing
        self.waiting_ids: set[str] = set()  # ids of the announce's nodes that wait for others
