"""Nodes that arrived before their author or parent, and the gateway's open requests, for each connection.

A node waits for one missing node at a time, the first that was found missing, and is checked again when that arrives.
Of a node for which there is no room only the id is kept: it is deferred, and requested again when it can be taken.
Everything is bounded, for each connection and for all of them (`WaitingQuota`), and a request ends after
`REQUEST_TIMEOUT`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from adapters.sprout.wire.codec import NO_ID, Frame, NodeLine, Query

MAX_WAITING: Final = 1024  # nodes
MAX_WAITING_BYTES: Final = 4 << 20
MAX_DEFERRED: Final = 16_384  # deferred nodes, some 200 bytes each
MAX_RECALLED: Final = 1024  # deferred nodes that are requested again together, unless more have the same parent
MAX_QUERIED: Final = 40  # ids in one query: nodes of the usual largest size fit into `MAX_BODY`
MAX_ASKED: Final = 64  # open requests; further ones queue, at most two for each node that waits
REQUEST_TIMEOUT: Final = 60_000  # ms, as the reference's
MAX_TOTAL_BYTES: Final = 32 << 20  # that waiting nodes take, on all connections together

# Bytes besides the node itself: its id, twice, and the entries in these tables.
_PER_NODE: Final = 600
_PER_ID: Final = 300
_PER_QUESTION: Final = 400


class WaitingQuota:
    """Bounds what waits on all connections by *limit* bytes; the connections that keep most are evicted first."""

    def __init__(self, limit: int = MAX_TOTAL_BYTES) -> None:
        self.size = 0
        self._limit = limit
        self._holders: dict[WaitingNodes, None] = {}
        self._awaited: dict[str, dict[WaitingNodes, None]] = {}

    def await_node(self, missing: str, holder: WaitingNodes) -> None:
        """Note that a node of *holder* waits for *missing*."""
        self._awaited.setdefault(missing, {})[holder] = None

    def stop_awaiting(self, missing: str, holder: WaitingNodes) -> None:
        """Note that no node of *holder* waits for *missing* any more."""
        if (holders := self._awaited.get(missing)) is not None:
            holders.pop(holder, None)
            if not holders:
                del self._awaited[missing]

    def is_awaited(self, id: str) -> bool:
        """Whether a node waits for the node *id* on any connection."""
        return id in self._awaited

    def node_arrived(self, id: str) -> None:
        """Tell all holders that still wait for the node *id* that it arrived."""
        for holder in list(self._awaited.get(id, ())):
            holder.node_arrived(id)

    def admits(self, holder: WaitingNodes, size: int) -> bool:
        """Whether *holder* may keep *size* bytes more; holders that keep more than it does are evicted for that."""
        if self.size + size > self._limit:
            self._evict_largest(holder, size)
        if self.size + size > self._limit:
            return False
        self._holders[holder] = None
        return True

    def leave(self, holder: WaitingNodes) -> None:
        """Forget *holder*, which keeps nothing any more."""
        self._holders.pop(holder, None)

    def _evict_largest(self, holder: WaitingNodes, size: int) -> None:
        """Evict the largest holders until a quarter is free, so that the next node does not need a search again."""
        larger = [each for each in self._holders if each.size > holder.size + size]
        for each in sorted(larger, key=_size_of, reverse=True):
            each.evict()
            if self.size <= self._limit * 3 // 4:
                return


class WaitingNodes:
    """The nodes of one connection that wait, by the node that they wait for.

    *lost* is called with their ids when they are evicted, *node_arrived* with the id of a node that some wait for and
    that arrived on another connection.
    """

    def __init__(
        self,
        quota: WaitingQuota,
        lost: Callable[[list[str]], None],
        node_arrived: Callable[[str], None] = lambda _id: None,
    ) -> None:
        self.size = 0
        self.node_arrived = node_arrived
        self._quota = quota
        self._lost = lost
        self._nodes: dict[str, list[NodeLine]] = {}
        self._ids: set[str] = set()
        self._lines_size = 0
        self._deferred: dict[str, list[str]] = {}
        self._deferred_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids) + len(self._deferred_ids)

    def __contains__(self, id: str) -> bool:
        return id in self._ids or id in self._deferred_ids

    def add(self, missing: str, line: NodeLine) -> bool:
        """Keep *line*, or its id alone, until *missing* arrives; return False if there is no room."""
        if line.id in self:
            return True
        if len(self._ids) < MAX_WAITING and self._lines_size + len(line.line) <= MAX_WAITING_BYTES:
            if not self._quota.admits(self, _size(line)):
                return False
            self._nodes.setdefault(missing, []).append(line)
            self._quota.await_node(missing, self)
            self._ids.add(line.id)
            self._lines_size += len(line.line)
            self._grow(_size(line))
            return True
        if len(self._deferred_ids) < MAX_DEFERRED and self._quota.admits(self, _PER_ID):
            self._deferred.setdefault(missing, []).append(line.id)
            self._quota.await_node(missing, self)
            self._deferred_ids.add(line.id)
            self._grow(_PER_ID)
            return True
        return False

    def evict(self) -> None:
        """Give up all nodes, in favour of other connections."""
        ids = [*self._ids, *self._deferred_ids]
        self.leave()
        self._lost(ids)

    def leave(self) -> None:
        """Drop all nodes."""
        for missing in (*self._nodes, *self._deferred):
            self._quota.stop_awaiting(missing, self)
        for kept in (self._nodes, self._ids, self._deferred, self._deferred_ids):
            kept.clear()
        self._lines_size = 0
        self._grow(-self.size)
        self._quota.leave(self)

    def _grow(self, size: int) -> None:
        self.size += size
        self._quota.size += size

    def pop(self, missing: str) -> list[NodeLine]:
        """Take out the nodes that wait for *missing*, in the order of their arrival."""
        lines = self._nodes.pop(missing, None)
        if lines is None:
            return []
        if missing not in self._deferred:
            self._quota.stop_awaiting(missing, self)
        self._ids.difference_update(line.id for line in lines)
        self._lines_size -= sum(len(line.line) for line in lines)
        self._grow(-sum(map(_size, lines)))
        return lines

    def take_deferred_below(self, here: str) -> list[str]:
        """Take out the ids of nodes deferred until *here* arrives, and of those below them, parents first."""
        found: list[str] = []
        parents = deque([here])
        while parents and len(found) < MAX_RECALLED:
            ids = self.take_deferred(parents.popleft())
            found += ids
            parents += ids
        return found

    def take_deferred(self, missing: str) -> list[str]:
        """Take out the ids of nodes deferred until *missing* arrives."""
        ids = self._deferred.pop(missing, [])
        if missing not in self._nodes:
            self._quota.stop_awaiting(missing, self)
        self._deferred_ids.difference_update(ids)
        self._grow(-_PER_ID * len(ids))
        return ids


def _size(line: NodeLine) -> int:
    """The memory that a waiting node takes, in bytes: it is kept decoded and as a line."""
    return len(line.raw) + len(line.line) + _PER_NODE


def _size_of(waiting: WaitingNodes) -> int:
    return waiting.size


class OpenRequest(NamedTuple):
    """The nodes that a request asks for, and when it is given up (ms)."""

    missing: tuple[str, ...]
    deadline: int


class OpenRequests:
    """The gateway's requests on a connection: the open ones, by message id, and those that queue."""

    def __init__(self) -> None:
        self._open: dict[int, OpenRequest] = {}
        self._queue: deque[tuple[tuple[str, ...], Frame]] = deque()
        self._missing: set[str] = set()

    def __bool__(self) -> bool:
        """Whether any request queues."""
        return bool(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open or queues."""
        return not (self._open or self._queue)

    @property
    def size(self) -> int:
        """The approximate memory that they take, in bytes."""
        return _PER_QUESTION * len(self._missing)

    def is_open(self, id: int) -> bool:
        """Whether the request *id* is open."""
        return id in self._open

    def is_requested(self, missing: str) -> bool:
        """Whether a request for *missing* is open or queues."""
        return missing in self._missing

    def queue(self, frame: Frame, *missing: str) -> None:
        """Queue the request *frame* for the *missing* nodes."""
        self._queue.append((missing, frame))
        self._missing.update(missing)

    def queue_ids(self, ids: Iterable[str]) -> None:
        """Queue queries for the nodes with these ids, unless they are requested already."""
        left = [id for id in ids if id not in self._missing]
        for at in range(0, len(left), MAX_QUERIED):
            part = left[at : at + MAX_QUERIED]
            self.queue(Query(NO_ID, tuple(part)), *part)

    def next(self) -> tuple[tuple[str, ...], Frame] | None:
        """The next request that can be sent now, and the nodes that it asks for; None if there is none."""
        return self._queue.popleft() if self._queue and len(self._open) < MAX_ASKED else None

    def add(self, id: int, missing: tuple[str, ...], now: int) -> None:
        """Note that the request *id*, for the *missing* nodes, was sent."""
        self._open[id] = OpenRequest(missing, now + REQUEST_TIMEOUT)

    def drop(self, missing: tuple[str, ...]) -> None:
        """Forget that these nodes are requested."""
        self._missing.difference_update(missing)

    def answered(self, id: int) -> tuple[str, ...]:
        """Close the request *id*; return the nodes that it asked for, none if it is not open."""
        question = self._open.pop(id, None)
        if question is None:
            return ()
        self.drop(question.missing)
        return question.missing

    def overdue(self, now: int) -> list[str]:
        """Close overdue requests; return the nodes that they asked for."""
        late = [id for id, question in self._open.items() if question.deadline <= now]
        return [missing for id in late for missing in self.answered(id)]
