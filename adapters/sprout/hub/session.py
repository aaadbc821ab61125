"""One Sprout connection: what each verb does on the bus, and what we ask the peer ourselves.

Every request has one answer. A malformed one is status 1, as is one that the peer has no right to; an ancestry of a
node that is not held is status 4; what becomes of an announce is in `arrivals`. A peer that is too fast is not refused
but read more slowly. Where the reference does otherwise is in docs/protocols.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Self

from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_NODES, Frame, SproutError, StatusCode
from adapters.sprout.wire.parser import Parser
from gateway.core.errors import ProtocolError, RequestError, Throttled, Unavailable
from gateway.core.message import Message, Peer
from gateway.core.principal import Principal
from gateway.core.session import Session

from .answers import AnswerLine, FindNodes, PendingAnswer, StreamedResponse, fitting
from .arrivals import MAX_RUN, Arrivals
from .auto_subscriber import AutoSubscriber
from .batch import NodeBatch
from .connection import SproutConnection
from .hub import Hub

MAX_OUTBOX: Final = 8 << 20  # a response of 4 MiB and as much in deliveries
MESSAGE_SECONDS: Final = 60  # for a message, or a part of a long announce, from its first byte to its last
MAX_NODES_ANNOUNCED: Final = 256  # nodes in one announce of ours; genuine peers take each of them in on its own

_PER_WANTED: Final = 200  # bytes that a subscription takes
_FIRST: Final = itemgetter(0)
_NODE: Final = ord("S")  # how a node's line begins, and no verb


class SproutSession(SproutConnection):
    """A connected peer: a client, or a relay that acts as one."""

    def __init__(self, bus: Any, principal: Principal, hub: Hub, refused: Callable[[str], None]) -> None:
        super().__init__(bus, principal)
        self.max_outbox = MAX_OUTBOX
        self._hub = hub
        self._nodes = hub.nodes
        self._rights = hub.rights
        self._reader = hub.reader
        self._presence = hub.presence
        self._refused = refused
        self._arrivals = Arrivals(self, hub.nodes.store, hub.intake, refused, hub.quota)
        self._auto_subscriber = AutoSubscriber(self, hub.nodes, hub.rights)
        self._parser = Parser(self._expects)
        self._next_id = 0
        self._work: Callable[[], None] | None = None
        self._throttled = False  # until the next tick
        self._answering: PendingAnswer | None = None  # that is still being gathered, or made
        self._silent_seconds = 0  # seconds since the beginning of a message without its end
        self.handshake: float | None = None  # seconds for the first message; None once it is there, or is not awaited

    # What the shell and the bus call

    @property
    def saturated(self) -> bool:
        """Whether the next request has to wait; also for the next second, or for an answer that is being made."""
        return self._throttled or self._answering is not None or super().saturated

    @property
    def unwritable(self) -> bool:
        """Whether nodes are refused now, since the log cannot be written; where it is merely slow they wait."""
        return self.bus.failing is not None

    def handle(self, data: bytes) -> None:
        """Act on what arrived, request by request, as long as there is room for answers."""
        self._parser.feed(data)
        try:
            while self.closing is None:
                if self.saturated:
                    self._backlog.appendleft(b"")  # there may be more in the parser
                    return
                if not self._step():
                    return
        finally:
            self._arrivals.wait_for_disk()

    def deliver(self, message: Message) -> None:
        """Announce a message to this peer alone."""
        self.put(self._nodes.message_line(message))

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origin: Session | None) -> int:
        """Announce messages to all who listen, but for those that are too long for Arbor."""
        tell = sessions[0]._hub.delivery.deliver
        return sum(tell(message, sessions, origin) for message in run if NAME not in message.undelivered)

    def peer_joined(self, channel: str, peer: Peer) -> None:  # noqa: ARG002  # it is told a moment later, once for all
        """Somebody came; see `presence`."""
        self._presence.changed(channel)

    def peer_left(self, channel: str, peer: Peer) -> None:  # noqa: ARG002
        """Somebody left; likewise."""
        self._presence.changed(channel)

    def fits(self, message: Message) -> bool:
        """Whether Arbor has room for a direct message."""
        return NAME in message.forms or ReplySigner.has_room(message.content)

    def all_to_send(self) -> None:
        """Nothing: what is queued has to be put into announces first."""

    def data_to_send(self) -> list[bytes]:
        """What can be written now; nodes that follow each other go into one announce."""
        return self._announced(super().data_to_send())

    def tick(self, now: int) -> None:
        """Give up what was asked too long ago, and go on where there was too much at once."""
        self._arrivals.tick(now)
        self._auto_subscriber.subscribe()
        self.take_ready()
        if (self._parser.in_message or self.handshake is not None) and not self._backlog:
            self._silent_seconds += 1  # whatever trickles in meanwhile
            if self._silent_seconds > (MESSAGE_SECONDS if self.handshake is None else self.handshake):
                self.close(1002, "half a message" if self._parser.in_message else "it says nothing")
        if self._throttled:
            self._throttled = False
            self.resume()
            self.wake()

    def receive_eof(self) -> None:
        """The connection is over."""
        self._hub.audience.sessions.pop(self, None)
        self._drop_all()
        super().receive_eof()

    def release_memory(self) -> None:
        """Let go of all that is kept for the peer: the gateway is short of memory."""
        self._drop_all()
        super().release_memory()

    def _drop_all(self) -> None:
        self._arrivals.clear()
        self._parser = Parser(self._expects)
        if self._answering is not None:
            self._answering.over = True

    @property
    def held_size(self) -> int:
        """About how many bytes are kept for the peer."""
        gathered = 0 if self._answering is None else self._answering.size
        left = (
            sum(form.left for form in self._queue if isinstance(form, StreamedResponse)) if self._pending_count else 0
        )
        return (
            super().held_size
            - left
            + gathered
            + self._parser.size
            + self._arrivals.size
            + _PER_WANTED * len(self.wanted)
        )

    def _expects(self, id: int) -> bool:
        """Whether the request *id* is one of ours that waits for nodes."""
        return self._arrivals.is_expected(id) or self._auto_subscriber.is_expected(id)

    # What others of this adapter call

    def take_ready(self) -> None:
        """Take what waited, and is to be taken now."""
        if self._arrivals.ready_batches and not self._backlog:
            self._backlog.append(b"")
            self.resume()
            self.wake()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run *call* when others had their turn."""
        self._hub.post(call)

    def community_added(self, community: str) -> None:
        """A community is a channel from now on."""
        if community in self.wanted and (channel := self._nodes.channel(community)) is not None:
            self.join(channel)
        self._auto_subscriber.community_added(community)

    def join(self, channel: str) -> None:
        """Listen to the channel of a community that is wanted, if that is allowed."""
        if channel not in self.channels and self.bus.allowed(self.principal, "subscribe", channel):
            self.bus.subscribe(self, channel)
            self._presence.joined(channel, self)

    def request(self, frame: Frame) -> int:
        """Make a request of ours; its id."""
        id = self._request_id()
        self.send(codec.encode(frame._replace(id=id)))
        return id

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
            self._throttled = True
            return True
        except SproutError as error:
            self._message_read()
            self._arrivals.drop_partial()
            self._refused("malformed")
            self.status(error.message_id, error.status)
        except ProtocolError:  # the connection ends, but not without a word
            self._refused("malformed")
            self.status(self._parser.message_id, StatusCode.MALFORMED)
            raise
        self._work = None
        return True

    def _next_work(self) -> Callable[[], None] | None:
        if self._arrivals.ready_batches:
            return partial(self._enter, self._arrivals.ready_batches.popleft())
        try:
            frame = self._parser.next_frame()
        except SproutError as error:
            if error.status == StatusCode.MALFORMED:
                self.record_malformed()
            raise
        if frame is None:
            return None
        self._message_read()
        return self._begin(frame)

    def _message_read(self) -> None:
        """A whole message is here: from now on the peer may be silent for as long as it likes."""
        self._silent_seconds, self.handshake = 0, None

    def _begin(self, frame: Frame) -> Callable[[], None]:
        if isinstance(frame, codec.Announce):
            batch = self._arrivals.batch_of(frame)
            return partial(self._enter, batch) if len(batch.nodes) != 1 else self._burst(batch)
        if isinstance(frame, codec.Response) and self._auto_subscriber.is_expected(frame.id):
            return partial(self._enter, self._auto_subscriber.batch_of(frame))
        if isinstance(frame, codec.Response):
            answer = self._arrivals.answer(frame)
            return _nothing if answer is None else partial(self._answered, answer, frame)
        return partial(self._do, frame)

    def _burst(self, first: NodeBatch) -> Callable[[], None]:
        """Announces of one node each that are there together are taken together."""
        burst = deque((first,))
        while len(burst) < MAX_RUN and (another := self._parser.next_announce()) is not None:
            burst.append(self._arrivals.batch_of(another))
        return partial(self._arrivals.take_burst, burst)

    def _enter(self, batch: NodeBatch) -> None:
        self._arrivals.take(batch)

    def _answered(self, batch: NodeBatch, frame: codec.Response) -> None:
        self._enter(batch)
        self._arrivals.answered(batch, frame)

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
        self.status(frame.id, StatusCode.OK)

    def _list(self, frame: codec.List) -> None:
        """The newest nodes of a type, newest first."""
        self._rights.pace(self, "")
        quantity = min(frame.quantity, MAX_NODES)
        self._auto_subscriber.peer_lists(frame)
        self._answer(frame.id, lambda: self._reader.newest(self, frame.node_type, quantity))

    def _query(self, frame: codec.Query) -> None:
        """Those that are held, in the order in which they were asked for."""
        self._rights.pace(self, "")
        self._answer(frame.id, lambda: self._reader.by_id(self, frame.node_ids))

    def _ancestry(self, frame: codec.Ancestry) -> None:
        """The nodes above one, shallowest first."""
        self._rights.pace(self, "")
        levels, above = min(frame.levels, MAX_NODES), self._reader.ancestors(self, frame.node_id)
        if above is None:
            raise SproutError("no such node", StatusCode.UNKNOWN_NODE)
        self._answer(frame.id, lambda: above(levels), nearest_last=True)

    def _leaves_of(self, frame: codec.LeavesOf) -> None:
        """The newest nodes that are, or are below, one; oldest first."""
        self._rights.pace(self, "")
        quantity = min(frame.quantity, MAX_NODES)
        self._answer(frame.id, lambda: self._reader.descendants(self, frame.node_id, quantity), nearest_last=True)

    def _subscribe(self, frame: codec.Subscribe) -> None:
        """Any id will do: a community that nobody knows yet is joined when it comes."""
        self._auto_subscriber.peer_subscribes(frame.node_id)
        if len(self.wanted) >= self.bus.subscriptions and frame.node_id not in self.wanted:
            raise SproutError("too many subscriptions")
        channel = self._nodes.channel(frame.node_id)
        self._rights.pace(self, channel or "")
        if channel is not None:
            self._rights.admit(self, "subscribe", channel)
            self.join(channel)
        self.wanted[frame.node_id] = None
        self.status(frame.id, StatusCode.OK)
        self._auto_subscriber.subscribe()

    def _unsubscribe(self, frame: codec.Unsubscribe) -> None:
        """Whether it was subscribed to or not."""
        self.wanted.pop(frame.node_id, None)
        channel = self._nodes.channel(frame.node_id)
        if channel in self.channels:
            self.bus.unsubscribe(self, channel)
        self.status(frame.id, StatusCode.OK)

    def _acknowledged(self, frame: codec.Status) -> None:
        """An announce of ours was taken or not, which is the peer's affair; or a question has no answer."""
        self._arrivals.refused(frame.id)
        self._auto_subscriber.handle_status(frame)

    # Answers

    def _answer(self, id: int, find: FindNodes, *, nearest_last: bool = False) -> None:
        """Respond with the nodes that *find* finds: at once, or when they are gathered and the last of them is made."""
        response = StreamedResponse(self._nodes.reread_line, self._schedule, self._answer_lost)

        def done(lines: list[AnswerLine] | None) -> None:
            self._answering = None
            if lines is None:
                response.fill(codec.encode_status(id, StatusCode.MALFORMED))  # half an answer must not look whole
                return
            lines = fitting(lines)
            response.answer(id, lines[::-1] if nearest_last else lines)

        self._answering = PendingAnswer(find, self._schedule, done)
        self._answering.advance()
        self.put(response)

    def _schedule(self, call: Callable[[], None]) -> None:
        """Run *call*, a slice of an answer, when this peer's turn has come."""
        self._hub.answer_scheduler.schedule(call, self.network)

    def _answer_lost(self) -> None:
        """What has been answered in part cannot be read any more: it must not look whole."""
        self._discard()
        self.close(1011, "an answer cannot be read any more")

    def _request_id(self) -> int:
        """The id of our next request; what is to be announced before it gets its own first."""
        self._rewrite(self._announced)
        return self._take_id()

    def _take_id(self) -> int:
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
            part = codec.fitting(lines[at : at + MAX_NODES_ANNOUNCED])
            at += len(part)
            yield codec.encode_announce(self._take_id(), *part)


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


def _nothing() -> None:
    """An answer to a question that we did not ask."""
