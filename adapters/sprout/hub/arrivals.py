"""The nodes that arrive on one connection: taken one after another, or kept until what they need is here.

What is missing is asked for on this connection, and given up when that brings nothing; what could not be written is
asked for once it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from adapters.sprout.forest.forest import Node, Reply, decode
from adapters.sprout.forest.validate import EXPIRED
from adapters.sprout.store.store import Store
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_NODES, NO_ID, Frame, NodeLine, StatusCode
from gateway.core.bounded import BoundedMap
from gateway.core.errors import Unavailable

from .acknowledgements import Acknowledgements
from .batch import Batch
from .connection import Connection
from .intake import Intake
from .taken import Taken
from .waiting import Questions, Room, Waiting

CROWDED: Final = "too many wait for others"
ORPHAN: Final = "its author or parent is unknown"
UNWRITTEN: Final = "the log cannot be written"
MAX_LACKING: Final = 1024  # ids of nodes that were lost, since the peer did not bring what is above them
MAX_RUN: Final = 64  # nodes that are taken together: some 4 ms


class Arrivals:
    """What arrives at *session*; *refused* counts what is not taken, by its reason. *room* is for what waits."""

    def __init__(
        self, session: Connection, store: Store, intake: Intake, refused: Callable[[str], None], room: Room
    ) -> None:
        self.returning: deque[Batch] = deque()  # nodes whose parents came by another connection
        self._session = session
        self._store = store
        self._intake = intake
        self._refused = refused
        self._room = room
        self._waiting = Waiting(room, self._crowded_out, self._came)
        self._answers = Acknowledgements(session)
        self._questions = Questions()
        self._lacking = BoundedMap[str, None](MAX_LACKING)
        self._unwritten = BoundedMap[str, None](
            MAX_LACKING
        )  # refused while the log failed; asked for when it can be written
        self._parts: Batch | None = None  # an announce of which more is to come

    @property
    def size(self) -> int:
        """About how many bytes are kept here for the peer."""
        batches = (*self.returning, *(() if self._parts is None else (self._parts,)))
        arrived = sum(len(line.raw) + len(line.line) for batch in batches for line in batch.nodes)
        return arrived + self._waiting.size + self._questions.size + self._answers.size

    @property
    def missing(self) -> int:
        """How many nodes the peer told of that are not here, since what is above them is not."""
        for id in [id for id in self._lacking if self._store.seq(id) is not None]:
            self._lacking.pop(id)
        return len(self._lacking) + len(self._waiting)

    def asks(self, id: int) -> bool:
        """Whether the request *id* of ours waits for an answer."""
        return self._questions.asks(id)

    def clear(self) -> None:
        """Nothing is to be taken or waited for any more."""
        self.returning.clear()
        self._parts = None
        self._answers.clear()
        self._waiting.leave()

    def tick(self, now: int) -> None:
        """Give up what was asked too long ago, and answer what waits too long for that."""
        for missing in self._questions.overdue(now):
            self._give_up(missing)
        if self._unwritten and not self._session.bus.congested:
            self._questions.queue_queries(self._unwritten)
            self._unwritten.clear()
        self._ask_on()
        self._answers.tick(now)

    def wait_for_disk(self) -> None:
        """What arrived together is read: answer its announces when the disk has them."""
        self._answers.wait_for_disk()

    # Announces

    def gather(self, frame: codec.Announce) -> Batch:
        """The batch of an announce, of which this may be a part."""
        batch, self._parts = self._parts, None
        if batch is None:
            batch = Batch(frame.nodes, len(frame.unreadable), frame.id)
        else:
            batch.nodes.extend(frame.nodes)
        if frame.more or batch.more:
            batch.more = frame.more
            self._parts = batch if frame.more else None
        return batch

    def abandon(self) -> None:
        """The rest of an announce will not come; what waits already is asked for as ever."""
        parts, self._parts = self._parts, None
        if parts is not None:
            self._ask(parts)

    def enter(self, batch: Batch) -> None:
        """Take node after node, until one has to be taken later; then answer."""
        nodes = batch.nodes
        while nodes:
            for taken in self._take(nodes, asked=batch.asked):
                self._taken(batch, nodes.popleft(), taken)
        self._end(batch)

    def enter_all(self, burst: deque[Batch]) -> None:
        """The same for announces of one node each that arrived together."""
        while burst:
            if self._waiting:
                self.enter(burst[0])
                burst.popleft()
                continue
            for taken in self._take([batch.nodes[0] for batch in burst]):
                batch = burst.popleft()
                self._taken(batch, batch.nodes.popleft(), taken)
                self._end(batch)

    def _take(self, nodes: Sequence[NodeLine], *, asked: bool = False) -> list[Taken]:
        """What becomes of the first of *nodes*, and of those behind it that are as easily taken with it."""
        together = 1 if self._waiting else MAX_RUN  # something may wait for each of them
        try:
            return self._intake.take_run(list(islice(nodes, together)), self._session, asked=asked)
        except Unavailable:
            if not self._session.unwritable:
                raise  # it is taken later
            return [Taken(reason=UNWRITTEN)]

    def _taken(self, batch: Batch, line: NodeLine, taken: Taken) -> None:
        """A node of *batch* was taken in, or not: go on with what waits for it, or let it wait itself."""
        seq, reason, missing, status, _, forged = taken
        if seq > batch.seq:
            batch.seq = seq
        if status:
            batch.status = max(batch.status, status)
        if missing and not self._keep(batch, line, missing):
            reason = CROWDED
            batch.status = StatusCode.UNKNOWN_NODE
            self._lack(line.id)
        if reason:
            self._refused(reason)
            unwritten = reason == UNWRITTEN
            if unwritten:
                batch.status = max(batch.status, StatusCode.MALFORMED)
                self._unwritten[line.id] = None
            self._give_up(line.id, refused=True, unwritten=unwritten)
            self._answers.settle(line.id, batch.status if unwritten else StatusCode.OK)
            batch.forged = batch.forged or forged
            batch.taken = batch.taken or reason == EXPIRED  # clients announce it with all they hold, again and again
            return
        if missing:
            self._answers.owe(batch, line.id)
            return
        batch.taken = True
        # A direct message that waited is dropped, not refused.
        self._answers.settle(line.id, StatusCode.OK, seq, taken=True)
        if not seq and self._room.is_awaited(line.id):  # it is not logged: nobody else tells those who wait
            self._session.later(partial(self._room.came, line.id))
        if self._waiting:
            batch.nodes.extendleft(reversed(self._waiting.pop(line.id)))
            self._questions.queue_queries(self._waiting.recall(line.id))

    def _end(self, batch: Batch) -> None:
        """All that has come of a batch is taken: answer, and ask for what is missing."""
        if batch.forged and not batch.taken and not batch.waited:
            self._session.record_malformed()
        if batch.more:
            return
        self._answers.ended(batch)
        if batch.asks or self._questions:
            self._ask(batch)

    # Questions of ours

    def answer(self, frame: codec.Response) -> Batch | None:
        """The nodes of an answer to a question of ours; None where we did not ask."""
        missing = self._questions.answered(frame.id)
        if not missing:
            return None
        batch = Batch(frame.nodes, 0)
        batch.asked, batch.sought = True, missing
        return batch

    def answered(self, batch: Batch, frame: codec.Response) -> None:
        """An answer has been taken; what it did not bring will not come, but may not have had room."""
        self._questions.queue_queries(frame.cut)
        brought = {line.id for line in frame.nodes}
        left = [id for id in batch.sought if id not in brought]
        if len(left) < len(batch.sought):
            self._questions.queue_queries(left)
        for id in batch.sought:
            if not self._questions.asked(id):
                self._give_up(id)
        self._ask_on()

    def refused(self, id: int) -> None:
        """The request *id* got a status for an answer: where it was a question, that brings nothing."""
        for missing in self._questions.answered(id):
            self._give_up(missing)
        self._ask_on()

    def _keep(self, batch: Batch, line: NodeLine, missing: tuple[str, ...]) -> bool:
        """Let a node wait, and see to it that what it waits for is asked for."""
        if not self._waiting.add(missing[0], line):
            return False
        node = decode(line.raw)
        for id in missing:
            batch.asks.setdefault(id, _question(id, line.id, node))
        return True

    def _ask(self, batch: Batch) -> None:
        """Ask for what is still missing at the end of a batch, but not again for what it should have brought."""
        for missing, frame in batch.asks.items():
            if missing not in self._waiting and missing not in batch.sought and not self._questions.asked(missing):
                self._questions.queue(frame, missing)
        batch.asks.clear()
        self._ask_on()

    def _ask_on(self) -> None:
        """Make as many of the requests that queue as may be open; not for what came by another connection."""
        while (request := self._questions.next()) is not None:
            missing, frame = request
            if all(map(self._store.has, missing)):
                self._questions.drop(missing)
                for here in missing:
                    self._release(here)
                continue
            self._questions.add(self._session.request(frame), missing, self._session.bus.clock())

    def _release(self, here: str) -> None:
        """Those that wait for a node that is *here* are taken next."""
        if lines := self._waiting.pop(here):
            self._return(lines)
        self._questions.queue_queries(self._waiting.recall(here))

    def _return(self, lines: list[NodeLine]) -> None:
        """These are taken next, whatever is missing above their parents."""
        batch = Batch(lines, 0)
        batch.asked = True
        self.returning.append(batch)

    def _give_up(self, missing: str, *, refused: bool = False, unwritten: bool = False) -> None:
        """Those that wait for *missing* are refused, unless that is here or waits itself.

        It was *refused*, or else this peer will not bring it. What is *unwritten* is asked for again.
        """
        if missing in self._waiting:
            return
        if self._store.seq(missing) is not None:
            self._release(missing)
            return
        if not refused:
            self._answers.settle(missing, StatusCode.UNKNOWN_NODE)  # it was put off, and is not brought again
        status = StatusCode.MALFORMED if unwritten else StatusCode.OK if refused else StatusCode.UNKNOWN_NODE
        lost = [missing]
        while lost:
            gone = lost.pop()
            lines = self._waiting.pop(gone)
            if spared := [line for line in lines if _stands(line, gone)]:
                self._return(spared)
            for id in (*(line.id for line in lines if line not in spared), *self._waiting.forget(gone)):
                self._refused(ORPHAN)
                if unwritten:
                    self._unwritten[id] = None
                elif not refused:
                    self._lack(id)
                self._answers.settle(id, status)
                lost.append(id)

    def _crowded_out(self, ids: list[str]) -> None:
        """Others need the room more than what waits here."""
        self._refused(CROWDED)
        for id in ids:
            self._lack(id)
            self._answers.settle(id, StatusCode.UNKNOWN_NODE)

    def _came(self, here: str) -> None:
        """A node that some wait for came by another connection."""
        self._release(here)
        self._session.go_on()

    def _lack(self, id: str) -> None:
        self._lacking[id] = None


def _question(missing: str, id: str, node: Node) -> Frame:
    """What to ask for *missing*, which the node *id* names: its author, or all that is above it."""
    if isinstance(node, Reply) and missing == node.parent:
        return codec.Ancestry(NO_ID, id, min(node.depth, MAX_NODES))
    return codec.Query(NO_ID, (missing,))


def _stands(line: NodeLine, missing: str) -> bool:
    """Whether the author and the parent of the node on *line* are held: *missing* is further up."""
    node = decode(line.raw)
    return isinstance(node, Reply) and missing not in (node.author, node.parent)
