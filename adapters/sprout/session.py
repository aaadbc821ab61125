"""One Sprout connection: what each verb does on the bus, and what we ask the peer ourselves.

Every request has one answer. A malformed one is status 1, as is one that the peer has no right to; an ancestry of a
node that is not held is status 4. An announce is answered once all of it that can be is on disk: status 1 only where
nothing of it was known, taken or kept waiting, status 4 where a direct message reached nobody, or where there was no
more room for nodes that wait for others. A peer that is too fast is not refused but read more slowly. Where the
reference does otherwise is in docs/protocols.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Final, Self

from gateway.errors import ProtocolError, RequestError, Throttled, Unavailable
from gateway.message import Form, Message, Peer, Pending
from gateway.session import Principal, Session

from . import codec
from .codec import MAX_BODY, MAX_NODES, NO_ID, Frame, NodeLine, Parser, SproutError, StatusCode
from .forest import Node, Reply, decode
from .intake import Intake
from .relay import Relay
from .store import NAME
from .waiting import Questions, Waiting

MAX_OUTBOX: Final = 8 << 20  # a response of 4 MiB and as much in deliveries
MAX_SUBSCRIPTIONS: Final = 10_000
HALF_SECONDS: Final = 60  # for the rest of a message that has begun
MAX_TOLD: Final = 256  # nodes in one announce of ours; genuine peers take each of them in on its own

_FIRST: Final = itemgetter(0)
_NODE: Final = ord("S")  # how a node's line begins, and no verb


class Batch:
    """An announce, or an answer to a question of ours (without an *id*), with the nodes that are still to be taken.

    `more` nodes of it have not arrived yet; where `asked`, something here waits for them. `sought` is what the question
    was for.
    """

    def __init__(self, nodes: Iterable[NodeLine], unreadable: int, id: int | None = None) -> None:
        self.id = id
        self.nodes = deque(nodes)
        self.more = 0
        self.asked = False
        self.sought: tuple[str, ...] = ()
        self.taken = not self.nodes and not unreadable  # an empty announce is fine
        self.seq = 0
        self.status: int = StatusCode.OK
        self.asks: dict[str, Frame] = {}


class SproutSession(Session):
    """A connected peer: a client, or a relay that acts as one."""

    protocol = NAME

    def __init__(
        self, bus: Any, principal: Principal, relay: Relay, intake: Intake, refused: Callable[[str], None]
    ) -> None:
        super().__init__(bus, principal)
        self.max_outbox = MAX_OUTBOX
        self.since = bus.clock()  # ms
        self.wanted: dict[str, None] = {}  # the communities it subscribed to, known or not
        self._relay = relay
        self._store = relay.store
        self._intake = intake
        self._refused = refused
        self._parser = Parser()
        self._next_id = 0
        self._waiting = Waiting()
        self._questions = Questions()
        self._work: Callable[[], None] | None = None
        self._returning: deque[Batch] = deque()  # nodes whose parents came by another connection
        self._parts: Batch | None = None  # an announce of which more is to come
        self._promised: list[tuple[int, int]] = []  # the ids and codes of statuses that wait for the disk
        self._promised_seq = 0
        self._slow = False  # until the next tick
        self._answering = False  # a long answer is still being made
        self._half = 0  # seconds since the beginning of a message without its end

    # What the shell and the bus call

    @property
    def saturated(self) -> bool:
        """Whether the next request has to wait; also for the next second, or for an answer that is being made."""
        return self._slow or self._answering or super().saturated

    def handle(self, data: bytes) -> None:
        """Act on what arrived, request by request, as long as there is room for answers."""
        self._half = 0
        self._parser.feed(data)
        try:
            while self.closing is None:
                if self.saturated:
                    self._backlog.appendleft(b"")  # there may be more in the parser
                    return
                if not self._step():
                    return
        finally:
            if self._promised:
                self._wait_for_disk()

    def deliver(self, message: Message) -> None:
        """Announce a message to this peer alone."""
        self.put(self._relay.said(message))

    @classmethod
    def deliver_all(cls, message: Message, sessions: Sequence[Self], origin: Session | None) -> int:
        """Announce a message to all who listen, unless it is too long for Arbor."""
        if NAME in message.undelivered:
            return 0
        return sessions[0]._relay.telling.tell(message, sessions, origin)

    def greet(self, channel: str, peer: Peer) -> None:  # noqa: ARG002  # it is told a moment later, once for all
        """Somebody came; see `presence`."""
        self._relay.presence.changed(channel)

    def farewell(self, channel: str, peer: Peer) -> None:  # noqa: ARG002
        """Somebody left; likewise."""
        self._relay.presence.changed(channel)

    def fits(self, message: Message) -> bool:
        """Whether Arbor has room for a direct message."""
        return NAME in message.forms or self._relay.author.has_room(message.content)

    def all_to_send(self) -> None:
        """Nothing: what is queued has to be put into announces first."""

    def data_to_send(self) -> list[bytes]:
        """What can be written now; nodes that follow each other go into one announce."""
        return self._announced(super().data_to_send())

    def tick(self, now: int) -> None:
        """Give up what was asked too long ago, and go on where there was too much at once."""
        for missing in self._questions.overdue(now):
            self._give_up(missing)
        self._ask_on()
        if self._returning and not self._backlog:
            self._backlog.append(b"")
            self.resume()
        if self._parser.amid and not self._backlog:
            self._half += 1
            if self._half > HALF_SECONDS:
                self.close(1002, "half a message")
        if self._slow:
            self._slow = False
            self.resume()
            self.wake()

    def receive_eof(self) -> None:
        """The connection is over."""
        self._relay.sessions.pop(self, None)
        super().receive_eof()

    # What others of this adapter call

    def announce(self, line: Form) -> None:
        """Announce one node, whose *line* may still be being made."""
        self.put(line)

    def founded(self, community: str) -> None:
        """A community is a channel from now on."""
        if community in self.wanted and (channel := self._relay.channel(community)) is not None:
            self.join(channel)

    def join(self, channel: str) -> None:
        """Listen to the channel of a community that is wanted, if that is allowed."""
        if channel not in self.channels and self.bus.allowed(self.principal, "subscribe", channel):
            self.bus.subscribe(self, channel)
            self._relay.presence.joined(channel, self)

    # Requests

    def _step(self) -> bool:
        """Act on the next frame, or go on with the last; False when there is none."""
        try:
            if self._work is None:
                self._work = self._next_work()
                if self._work is None:
                    return False
            self._work()
        except (Throttled, Unavailable):
            self._slow = True
            return True
        except SproutError as error:
            self._abandon()
            self._refused("malformed")
            self._status(error.message_id, error.status)
        except ProtocolError:  # the connection ends, but not without a word
            self._refused("malformed")
            self._status(self._parser.message_id, StatusCode.MALFORMED)
            raise
        self._work = None
        return True

    def _next_work(self) -> Callable[[], None] | None:
        if self._returning:
            return partial(self._enter, self._returning.popleft())
        frame = self._parser.next_frame()
        return None if frame is None else self._begin(frame)

    def _abandon(self) -> None:
        """The rest of an announce will not come; what waits already is asked for as ever."""
        parts, self._parts = self._parts, None
        if parts is not None:
            self._ask(parts)

    def _begin(self, frame: Frame) -> Callable[[], None]:
        if isinstance(frame, codec.Announce):
            return partial(self._enter, self._gather(frame))
        if isinstance(frame, codec.Response):
            missing = self._questions.answered(frame.id)
            return partial(self._answered, _answer_to(missing, frame.nodes), frame) if missing else _nothing
        return partial(self._do, frame)

    def _gather(self, frame: codec.Announce) -> Batch:
        """The batch of an announce, of which this may be a part."""
        batch, self._parts = self._parts, None
        if batch is None:
            batch = Batch(frame.nodes, len(frame.unreadable), frame.id)
        else:
            batch.nodes.extend(frame.nodes)
        batch.more = frame.more
        if batch.more:
            self._parts = batch
        return batch

    def _do(self, frame: Frame) -> None:
        try:
            VERBS[type(frame)](self, frame)
        except Throttled:
            raise
        except SproutError as error:
            raise SproutError(str(error), error.status, frame.id) from None
        except RequestError as error:
            raise SproutError(str(error), message_id=frame.id) from None

    def _version(self, frame: codec.Version) -> None:
        """Every version 0 will do; others were refused when they were read."""
        self._status(frame.id, StatusCode.OK)

    def _list(self, frame: codec.List) -> None:
        """The newest nodes of a type, newest first."""
        self._relay.pace(self, "")
        self._answer(frame.id, self._relay.reader.newest(self, frame.node_type, min(frame.quantity, MAX_NODES)))

    def _query(self, frame: codec.Query) -> None:
        """Those that are held, in the order in which they were asked for."""
        self._relay.pace(self, "")
        self._answer(frame.id, self._relay.reader.held(self, frame.node_ids))

    def _ancestry(self, frame: codec.Ancestry) -> None:
        """The nodes above one, shallowest first."""
        self._relay.pace(self, "")
        above = self._relay.reader.above(self, frame.node_id, min(frame.levels, MAX_NODES))
        if above is None:
            raise SproutError("no such node", StatusCode.UNKNOWN_NODE)
        self._answer(frame.id, above, nearest_last=True)

    def _leaves_of(self, frame: codec.LeavesOf) -> None:
        """The newest nodes that are, or are below, one; oldest first."""
        self._relay.pace(self, "")
        below = self._relay.reader.below(self, frame.node_id, min(frame.quantity, MAX_NODES))
        self._answer(frame.id, below, nearest_last=True)

    def _subscribe(self, frame: codec.Subscribe) -> None:
        """Any id will do: a community that nobody knows yet is joined when it comes."""
        if len(self.wanted) >= MAX_SUBSCRIPTIONS:
            raise SproutError("too many subscriptions")
        channel = self._relay.channel(frame.node_id)
        self._relay.pace(self, channel or "")
        if channel is not None:
            self._relay.admit(self, "subscribe", channel)
            self.join(channel)
        self.wanted[frame.node_id] = None
        self._status(frame.id, StatusCode.OK)

    def _unsubscribe(self, frame: codec.Unsubscribe) -> None:
        """Whether it was subscribed to or not."""
        self.wanted.pop(frame.node_id, None)
        channel = self._relay.channel(frame.node_id)
        if channel in self.channels:
            self.bus.unsubscribe(self, channel)
        self._status(frame.id, StatusCode.OK)

    def _acknowledged(self, frame: codec.Status) -> None:
        """An announce of ours was taken or not, which is the peer's affair; or a question has no answer."""
        for missing in self._questions.answered(frame.id):
            self._give_up(missing)
        self._ask_on()

    # Nodes that arrive

    def _enter(self, batch: Batch) -> None:
        """Take node after node, until one has to be taken later; then answer."""
        while batch.nodes:
            line = batch.nodes[0]
            taken = self._intake.take(line, self, asked=batch.asked)
            batch.nodes.popleft()
            batch.seq = max(batch.seq, taken.seq)
            batch.status = max(batch.status, taken.status)
            reason = taken.reason
            if taken.missing and not self._keep(batch, line, taken.missing):
                reason = "too many wait for others"
                batch.status = StatusCode.UNKNOWN_NODE
            if reason:
                self._refused(reason)
                self._give_up(line.id)
                continue
            batch.taken = True
            if not taken.missing:
                batch.nodes.extendleft(reversed(self._waiting.pop(line.id)))
                self._questions.queue_queries(self._waiting.recall(line.id))
        if batch.more:
            return
        if batch.id is not None:
            self._promise(batch.seq, batch.id, batch.status if batch.taken else StatusCode.MALFORMED)
        self._ask(batch)

    def _promise(self, seq: int, id: int, code: int) -> None:
        """Answer with *code* once everything up to *seq* is on disk; announces that arrive together wait together."""
        if not seq:
            self._status(id, code)
            return
        if not self._promised:
            self._promised_seq = 0
        self._promised.append((id, code))
        self._promised_seq = max(self._promised_seq, seq)

    def _wait_for_disk(self) -> None:
        """What arrived together is read: answer its announces when the disk has them."""
        promised, self._promised = self._promised, []
        self.bus.ledger.when_synced(self._promised_seq, partial(self._keep_promises, promised))

    def _keep_promises(self, promised: list[tuple[int, int]]) -> None:
        for id, code in promised:
            self._status(id, code)

    def _answered(self, batch: Batch, frame: codec.Response) -> None:
        """An answer to a question of ours; what it did not bring will not come, but may not have had room."""
        self._enter(batch)
        brought = {line.id for line in frame.nodes}
        left = [id for id in batch.sought if id not in brought]
        if len(left) < len(batch.sought):
            self._questions.queue_queries(left)
        for id in batch.sought:
            if not self._questions.asked(id):
                self._give_up(id)
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
            if all(self._store.seq(each) is not None for each in missing):
                self._questions.drop(missing)
                for here in missing:
                    self._release(here)
                continue
            id = self._next()
            self._questions.add(id, missing, self.bus.clock())
            self.send(codec.encode(frame._replace(id=id)))

    def _release(self, here: str) -> None:
        """Those that wait for a node that is *here* are taken next."""
        if lines := self._waiting.pop(here):
            batch = Batch(lines, 0)
            batch.asked = True
            self._returning.append(batch)
        self._questions.queue_queries(self._waiting.recall(here))

    def _give_up(self, missing: str) -> None:
        """This peer will not bring *missing*: those that wait for it are refused, unless it is here or waits itself."""
        if missing in self._waiting or not self._waiting.awaited(missing):
            return
        if self._store.seq(missing) is not None:
            self._release(missing)
            return
        lost = [missing]
        while lost:
            for id in self._waiting.lose(lost.pop()):
                self._refused("its author or parent is unknown")
                lost.append(id)

    # Answers

    def _answer(self, id: int, forms: list[Form], *, nearest_last: bool = False) -> None:
        """Respond with nodes, once the last of them is made."""
        pending = [form for form in forms if isinstance(form, Pending) and not form.done]
        if not pending:
            self.send(_response(id, forms, nearest_last))
            return
        response, self._answering, left = Pending(), True, len(pending)

        def made() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._answering = False
                response.fill(_response(id, forms, nearest_last))

        self.put(response)
        for form in pending:
            form.when_done(made)

    def _status(self, id: int, code: int) -> None:
        self.send(codec.encode_status(id, code))

    def _next(self) -> int:
        """The id of our next request; what is to be announced before it gets its own first."""
        if not self._held:
            self._queue = list(self._announced(self._queue))  # type: ignore[arg-type]  # no Pending among them
        return self._count()

    def _count(self) -> int:
        id, self._next_id = self._next_id, self._next_id + 1
        return id

    def _announced(self, data: list[bytes]) -> list[bytes]:
        """*data* with its node lines in announces; everything else is a message already."""
        messages: list[bytes] = []
        for first, run in groupby(data, _FIRST):
            parts = list(run)
            messages += self._announces(parts) if first == _NODE else parts
        return messages

    def _announces(self, lines: list[bytes]) -> Iterator[bytes]:
        at = 0
        while at < len(lines):
            part = _fitting(lines[at : at + MAX_TOLD])
            at += len(part)
            yield codec.encode_announce(self._count(), *part)


# fmt: off
VERBS: Final[dict[type, Callable[[SproutSession, Any], None]]] = {
    codec.Version:     SproutSession._version,
    codec.List:        SproutSession._list,
    codec.Query:       SproutSession._query,
    codec.Ancestry:    SproutSession._ancestry,
    codec.LeavesOf:    SproutSession._leaves_of,
    codec.Subscribe:   SproutSession._subscribe,
    codec.Unsubscribe: SproutSession._unsubscribe,
    codec.Status:      SproutSession._acknowledged,
}
# fmt: on


def _response(id: int, forms: list[Form], nearest_last: bool) -> bytes:
    """A response with as many lines as fit, from the end if those at the end matter most."""
    made = (form.data if isinstance(form, Pending) else form for form in forms)
    lines = [line for line in made if line is not None]
    fitting = _fitting(lines[::-1] if nearest_last else lines)
    return codec.encode_response(id, fitting[::-1] if nearest_last else fitting)


def _fitting(lines: list[bytes]) -> list[bytes]:
    """As many of the first *lines* as one message may have."""
    if sum(map(len, lines)) + len(lines) <= MAX_BODY:
        return lines  # nearly always
    sizes = accumulate(len(line) + 1 for line in lines)
    return lines[: max(1, sum(size <= MAX_BODY for size in sizes))]


def _question(missing: str, id: str, node: Node) -> Frame:
    """What to ask for *missing*, which the node *id* names: its author, or all that is above it."""
    if isinstance(node, Reply) and missing == node.parent:
        return codec.Ancestry(NO_ID, id, min(node.depth, MAX_NODES))
    return codec.Query(NO_ID, (missing,))


def _answer_to(missing: tuple[str, ...], nodes: Iterable[NodeLine]) -> Batch:
    """The nodes of an answer to a question for *missing*."""
    batch = Batch(nodes, 0)
    batch.asked, batch.sought = True, missing
    return batch


def _nothing() -> None:
    """An answer to a question that we did not ask."""
