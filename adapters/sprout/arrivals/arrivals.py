"""The nodes that arrive on one connection: taken in order, or kept until their authors and parents are held.

Missing nodes are requested on this connection, and given up if it does not send them; nodes that could not be logged
are requested again once the log can be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from adapters.sprout.announced.intake import Intake
from adapters.sprout.announced.outcome import NodeOutcome
from adapters.sprout.forest.forest import Node, Reply, decode
from adapters.sprout.forest.node_rules import EXPIRED
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.store.store import Store
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_NODES, NO_ID, Frame, NodeLine, StatusCode
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import Unavailable

from .acknowledgements import Acknowledgements
from .batch import NodeBatch
from .waiting import OpenRequests, WaitingNodes, WaitingQuota

CROWDED: Final = "too many wait for others"
ORPHAN: Final = "its author or parent is unknown"
UNWRITTEN: Final = "the log cannot be written"
MAX_LOST: Final = 1024  # ids of nodes that were given up, since the peer did not send their ancestors
MAX_RUN: Final = 64  # nodes that are taken together: some 4 ms


class Arrivals:
    """The nodes that arrive at *session*; *count_refusal* counts refusals by reason, *quota* bounds what waits."""

    def __init__(
        self,
        session: SproutConnection,
        store: Store,
        intake: Intake,
        count_refusal: Callable[[str], None],
        quota: WaitingQuota,
    ) -> None:
        self.ready_batches: deque[NodeBatch] = deque()  # nodes whose parents arrived on another connection
        self._session = session
        self._store = store
        self._intake = intake
        self._count_refusal = count_refusal
        self._quota = quota
        self._waiting = WaitingNodes(quota, self._evicted, self._node_arrived)
        self._acknowledgements = Acknowledgements(session)
        self._requests = OpenRequests()
        self._lost = BoundedMap[str, None](MAX_LOST)
        self._unwritten = BoundedMap[str, None](MAX_LOST)  # refused while the log failed; requested again later
        self._parts: NodeBatch | None = None  # an announce of which more parts follow

    @property
    def size(self) -> int:
        """The approximate memory kept for the peer, in bytes."""
        batches = (*self.ready_batches, *(() if self._parts is None else (self._parts,)))
        arrived = sum(len(line.raw) + len(line.line) for batch in batches for line in batch.nodes)
        return arrived + self._waiting.size + self._requests.size + self._acknowledgements.size

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be taken now, and nothing is requested."""
        return not self.ready_batches and self._requests.is_idle

    @property
    def missing_count(self) -> int:
        """The number of nodes that the peer announced and that are not held, since they lack ancestors."""
        for id in [id for id in self._lost if self._store.seq(id) is not None]:
            self._lost.pop(id)
        return len(self._lost) + len(self._waiting)

    def is_expected(self, id: int) -> bool:
        """Whether the request *id* of the gateway waits for a response."""
        return self._requests.is_open(id)

    def clear(self) -> None:
        """Drop everything."""
        self.ready_batches.clear()
        self._parts = None
        self._acknowledgements.clear()
        self._waiting.leave()

    def tick(self, now: int) -> None:
        """Give up overdue requests, answer overdue announces, and send the requests that are due."""
        for missing in self._requests.overdue(now):
            self._give_up(missing)
        if self._unwritten and not self._session.bus.congested:
            self._requests.queue_ids(self._unwritten)
            self._unwritten.clear()
        self._send_requests()
        self._acknowledgements.tick(now)

    def wait_for_disk(self) -> None:
        """Answer the announces that arrived together, once they are on disk."""
        self._acknowledgements.wait_for_disk()

    # Announces

    def batch_of(self, frame: codec.Announce) -> NodeBatch:
        """The batch of an announce; *frame* may be one of its parts."""
        batch, self._parts = self._parts, None
        if batch is None:
            batch = NodeBatch(frame.nodes, len(frame.unreadable), frame.id)
        else:
            batch.nodes.extend(frame.nodes)
        if frame.more or batch.more:
            batch.more = frame.more
            self._parts = batch if frame.more else None
        return batch

    def drop_partial(self) -> None:
        """Give up the rest of a partial announce; request what its nodes wait for."""
        parts, self._parts = self._parts, None
        if parts is not None:
            self._ask(parts)

    def take(self, batch: NodeBatch) -> None:
        """Take all nodes of *batch*, then answer it; raise `Throttled` or `Unavailable` to continue later."""
        nodes = batch.nodes
        while nodes:
            for outcome in self._take(nodes, requested=batch.requested_by_child):
                self._record_outcome(batch, nodes.popleft(), outcome)
        self._end_batch(batch)

    def take_burst(self, burst: deque[NodeBatch]) -> None:
        """The same for announces of one node each that arrived together."""
        while burst:
            if self._waiting:
                self.take(burst[0])
                burst.popleft()
                continue
            for outcome in self._take([batch.nodes[0] for batch in burst]):
                batch = burst.popleft()
                self._record_outcome(batch, batch.nodes.popleft(), outcome)
                self._end_batch(batch)

    def _take(self, nodes: Sequence[NodeLine], *, requested: bool = False) -> list[NodeOutcome]:
        """The outcome of the first of *nodes*, and of those after it that are taken in one run with it."""
        together = 1 if self._waiting else MAX_RUN  # nodes may wait for each of them
        try:
            return self._intake.take_run(list(islice(nodes, together)), self._session, requested=requested)
        except Unavailable:
            if not self._session.unwritable:
                raise  # it is taken later
            return [NodeOutcome(reason=UNWRITTEN)]

    def _record_outcome(self, batch: NodeBatch, line: NodeLine, outcome: NodeOutcome) -> None:
        """Record the outcome of a node of *batch*: continue with the nodes that wait for it, or let it wait itself."""
        seq, reason, missing = outcome.seq, outcome.reason, outcome.missing
        if seq > batch.seq:
            batch.seq = seq
        if outcome.status:
            batch.status = max(batch.status, outcome.status)
        if missing and not self._let_wait(batch, line, missing):
            reason = CROWDED
            batch.status = StatusCode.UNKNOWN_NODE
            self._add_lost(line.id)
        if reason:
            self._count_refusal(reason)
            unwritten = reason == UNWRITTEN
            if unwritten:
                batch.status = max(batch.status, StatusCode.MALFORMED)
                self._unwritten[line.id] = None
            self._give_up(line.id, refused=True, unwritten=unwritten)
            self._acknowledgements.node_settled(line.id, batch.status if unwritten else StatusCode.OK)
            batch.forged = batch.forged or outcome.forged
            batch.taken = batch.taken or reason == EXPIRED  # clients announce expired nodes again and again
            return
        if missing:
            self._acknowledgements.await_node(batch, line.id)
            return
        batch.taken = True
        # A direct message that waited is dropped, not refused.
        self._acknowledgements.node_settled(line.id, StatusCode.OK, seq, taken=True)
        if not seq and self._quota.is_awaited(line.id):  # not logged, so the store does not notify those that wait
            self._session.call_soon(partial(self._quota.node_arrived, line.id))
        if self._waiting:
            batch.nodes.extendleft(reversed(self._waiting.pop(line.id)))
            self._requests.queue_ids(self._waiting.take_deferred_below(line.id))

    def _end_batch(self, batch: NodeBatch) -> None:
        """Answer a batch of which all nodes so far were taken, and request missing nodes."""
        if batch.forged and not batch.taken and not batch.has_waited:
            self._session.record_malformed()
        if batch.more:
            return
        self._acknowledgements.batch_ended(batch)
        if batch.pending_requests or self._requests:
            self._ask(batch)

    # Requests of the gateway

    def batch_of_response(self, frame: codec.Response) -> NodeBatch | None:
        """The nodes of a response; None if the gateway did not request them."""
        missing = self._requests.answered(frame.id)
        if not missing:
            return None
        batch = NodeBatch(frame.nodes, 0)
        batch.requested_by_child, batch.requested_ids = True, missing
        return batch

    def finish_response(self, batch: NodeBatch, frame: codec.Response) -> None:
        """Finish a response that was taken: request again what had no room in it, and give up the rest."""
        self._requests.queue_ids(frame.cut)
        brought = {line.id for line in frame.nodes}
        left = [id for id in batch.requested_ids if id not in brought]
        if len(left) < len(batch.requested_ids):
            self._requests.queue_ids(left)
        for id in batch.requested_ids:
            if not self._requests.is_requested(id):
                self._give_up(id)
        self._send_requests()

    def response_refused(self, id: int) -> None:
        """Give up what the request *id* asked for: its response was a status."""
        for missing in self._requests.answered(id):
            self._give_up(missing)
        self._send_requests()

    def _let_wait(self, batch: NodeBatch, line: NodeLine, missing: tuple[str, ...]) -> bool:
        """Let a node wait, and request what it waits for; return False if there is no room."""
        if not self._waiting.add(missing[0], line):
            return False
        node = decode(line.raw)
        for id in missing:
            batch.pending_requests.setdefault(id, _question(id, line.id, node))
        return True

    def _ask(self, batch: NodeBatch) -> None:
        """Request what is missing at the end of a batch, except what the batch should have contained."""
        for missing, frame in batch.pending_requests.items():
            if (
                missing not in self._waiting
                and missing not in batch.requested_ids
                and not self._requests.is_requested(missing)
            ):
                self._requests.queue(frame, missing)
        batch.pending_requests.clear()
        self._send_requests()

    def _send_requests(self) -> None:
        """Send queued requests while the limit allows; skip those for nodes that arrived on another connection."""
        while (request := self._requests.next()) is not None:
            missing, frame = request
            if all(map(self._store.has, missing)):
                self._requests.drop(missing)
                for here in missing:
                    self._release(here)
                continue
            self._requests.add(self._session.request(frame), missing, self._session.bus.clock())

    def _release(self, here: str) -> None:
        """Take the nodes next that wait for the node *here*."""
        if lines := self._waiting.pop(here):
            self._return(lines)
        self._requests.queue_ids(self._waiting.take_deferred_below(here))

    def _return(self, lines: list[NodeLine]) -> None:
        """Take these nodes next, whichever of their remote ancestors are missing."""
        batch = NodeBatch(lines, 0)
        batch.requested_by_child = True
        self.ready_batches.append(batch)

    def _give_up(self, missing: str, *, refused: bool = False, unwritten: bool = False) -> None:
        """Refuse the nodes that wait for *missing*, unless that is held or waits itself.

        It was *refused*, or else the peer does not send it. *unwritten* nodes are requested again later.
        """
        if missing in self._waiting:
            return
        if self._store.seq(missing) is not None:
            self._release(missing)
            return
        if not refused:
            self._acknowledgements.node_settled(
                missing, StatusCode.UNKNOWN_NODE
            )  # it was deferred, and does not return
        status = StatusCode.MALFORMED if unwritten else StatusCode.OK if refused else StatusCode.UNKNOWN_NODE
        lost = [missing]
        while lost:
            gone = lost.pop()
            lines = self._waiting.pop(gone)
            if spared := [line for line in lines if _has_parents(line, gone)]:
                self._return(spared)
            for id in (*(line.id for line in lines if line not in spared), *self._waiting.take_deferred(gone)):
                self._count_refusal(ORPHAN)
                if unwritten:
                    self._unwritten[id] = None
                elif not refused:
                    self._add_lost(id)
                self._acknowledgements.node_settled(id, status)
                lost.append(id)

    def _evicted(self, ids: list[str]) -> None:
        """Give up the nodes *ids*, evicted in favour of other connections."""
        self._count_refusal(CROWDED)
        for id in ids:
            self._add_lost(id)
            self._acknowledgements.node_settled(id, StatusCode.UNKNOWN_NODE)

    def _node_arrived(self, here: str) -> None:
        """Continue with the nodes that wait for *here*, which arrived on another connection."""
        self._release(here)
        self._session.take_ready()

    def _add_lost(self, id: str) -> None:
        self._lost[id] = None


def _question(missing: str, id: str, node: Node) -> Frame:
    """The request for *missing*, which the node *id* refers to: a query for its author, or for all its ancestors."""
    if isinstance(node, Reply) and missing == node.parent:
        return codec.Ancestry(NO_ID, id, min(node.depth, MAX_NODES))
    return codec.Query(NO_ID, (missing,))


def _has_parents(line: NodeLine, missing: str) -> bool:
    """Whether the author and the parent of the node on *line* are held: *missing* is a remote ancestor."""
    node = decode(line.raw)
    return isinstance(node, Reply) and missing not in (node.author, node.parent)
