"""One Sprout connection: what each verb does on the bus, and the gateway's own requests.

Every request has one answer: status 1 if it is malformed or the peer has no right to it, status 4 for the ancestry of a
node that is not held; `arrivals` takes announces. A peer that exceeds its rate is not refused, but read more slowly.
docs/protocols.md lists where the reference differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, count
from typing import Any, Final, Self

from adapters.sprout.arrivals.arrivals import MAX_RUN, Arrivals
from adapters.sprout.arrivals.batch import NodeBatch
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.outgoing.announcing import in_announces
from adapters.sprout.outgoing.answers import StreamedAnswer
from adapters.sprout.outgoing.responder import Responder
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_NODES, Frame, SproutError, StatusCode
from adapters.sprout.wire.parser import Parser
from gateway.core.errors import ProtocolError, RequestError, Throttled, Unavailable
from gateway.core.message import Message, Peer
from gateway.core.principal import Principal
from gateway.core.subscriber import Subscriber

from .auto_subscriber import AutoSubscriber
from .shared_parts import SproutParts

MAX_OUTBOX: Final = 8 << 20  # a response of 4 MiB and as much in deliveries
MESSAGE_SECONDS: Final = 60  # for a message, or a part of a long announce, to arrive

_PER_WANTED: Final = 200  # bytes that a subscription takes


class SproutSession(SproutConnection):
    """A connected peer: a client, or a relay that acts as one."""

    def __init__(
        self, bus: Any, principal: Principal, parts: SproutParts, count_refusal: Callable[[str], None]
    ) -> None:
        super().__init__(bus, principal)
        self.max_outbox = MAX_OUTBOX
        self._nodes = parts.nodes
        self._audience = parts.audience
        self._delivery = parts.delivery
        self._post = parts.post
        self._rights = parts.rights
        self._reader = parts.reader
        self._presence = parts.presence
        self._count_refusal = count_refusal
        self._arrivals = Arrivals(self, parts.nodes.store, parts.intake, count_refusal, parts.quota)
        self._auto_subscriber = AutoSubscriber(self, parts.nodes, parts.rights)
        self._parser = Parser(self._expects)
        self._take_id = count().__next__  # of requests and announces
        self._work: Callable[[], None] | None = None
        self._throttled = False  # until the next tick
        self._responder = Responder(self, parts.nodes, parts.answer_scheduler, self._answer_lost)
        self._silent_seconds = 0  # since the beginning of an incomplete message
        self.handshake: float | None = None  # seconds for the first message; None once it arrived

    # Called by the shell and the bus

    @property
    def overloaded(self) -> bool:
        """Whether the next request has to wait; also for the next second, or for a response in progress."""
        return self._throttled or self._responder.busy or super().overloaded

    @property
    def unwritable(self) -> bool:
        """Whether nodes are refused because the log cannot be written; while it is merely slow, they wait."""
        return self.bus.failing is not None

    def handle(self, data: bytes) -> None:
        """Handle the requests in *data*, as long as there is room for answers."""
        if codec.are_statuses(data) and self._ignores_statuses:
            self._message_read()
            return
        only_reads = self.bus.acceptance.elsewhere and not self.may_log(data)
        self._parser.feed(data)
        try:
            while self.closing is None:
                if self.saturated and (self.overloaded or not only_reads):
                    self._backlog.appendleft(b"")  # the parser may have more
                    return
                if not self._step():
                    return
        finally:
            self._arrivals.wait_for_disk()

    def may_log(self, data: bytes) -> bool:
        """Whether it brings nodes, or answers the gateway, or what came before is not done."""
        if codec.are_statuses(data):
            return not self._ignores_statuses
        idle = self._work is None and self._parser.is_idle and not self._arrivals.ready_batches
        return not (idle and codec.only_reads(data))

    def deliver(self, message: Message) -> None:
        """Announce a message to this peer alone."""
        self.put(self._nodes.message_line(message))

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origins: Sequence[Subscriber | None]) -> int:
        """Announce messages to all listeners, except those that are not delivered to Arbor."""
        if any(message.undelivered for message in run):
            fits_arbor = [NAME not in message.undelivered for message in run]
            run, origins = list(compress(run, fits_arbor)), list(compress(origins, fits_arbor))
        return sessions[0]._delivery.deliver(run, sessions, origins) if run else 0

    def peer_joined(self, channel: str, peer: Peer) -> None:  # noqa: ARG002  # it is announced later, to all
        """Announce the arrival later; see `presence`."""
        self._presence.changed(channel)

    def peer_left(self, channel: str, peer: Peer) -> None:  # noqa: ARG002
        """Announce the departure later; see `presence`."""
        self._presence.changed(channel)

    def fits(self, message: Message) -> bool:
        """Whether a direct message fits into a node."""
        return NAME in message.forms or ReplySigner.has_room(message.content)

    def all_to_send(self) -> None:
        """Return None: queued nodes have to be put into announces first."""

    def data_to_send(self) -> list[bytes]:
        """What can be written now; successive nodes share one announce."""
        return in_announces(super().data_to_send(), self._take_id)

    def tick(self, now: int) -> None:
        """Check timeouts, and resume reading if the peer was throttled, once a second."""
        self._arrivals.tick(now)
        self._auto_subscriber.subscribe()
        self.take_ready()
        if (self._parser.in_message or self.handshake is not None) and self.readable:
            self._silent_seconds += 1  # also if a few bytes arrive meanwhile
            if self._silent_seconds > (MESSAGE_SECONDS if self.handshake is None else self.handshake):
                self.close(1002, "an incomplete message" if self._parser.in_message else "no message")
        if self._throttled:
            self._throttled = False
            self.resume()
            self.wake()

    def receive_eof(self) -> None:
        """Release everything at the end of the connection."""
        self._audience.sessions.pop(self, None)
        self._drop_all()
        super().receive_eof()

    def release_memory(self) -> None:
        """Drop everything that is kept for the peer, since the gateway is short of memory."""
        self._drop_all()
        super().release_memory()

    def _drop_all(self) -> None:
        self._arrivals.clear()
        self._parser = Parser(self._expects)
        self._responder.stop()

    @property
    def held_size(self) -> int:
        """The approximate memory kept for the peer, in bytes."""
        responses = [form for form in self._queue if isinstance(form, StreamedAnswer)] if self._pending_count else []
        unmade = sum(response.left for response in responses)
        kept = self._responder.size + self._parser.size + self._arrivals.size + _PER_WANTED * len(self.wanted)
        return super().held_size - unmade + kept

    def _expects(self, id: int) -> bool:
        """Whether the request *id* is one of the gateway's that waits for nodes."""
        return self._arrivals.is_expected(id) or self._auto_subscriber.is_expected(id)

    @property
    def _ignores_statuses(self) -> bool:
        """Whether a status that arrives now has no effect: it answers an announce, and nothing else is being done."""
        idle = self._work is None and self._parser.is_idle and self._arrivals.is_idle
        return idle and not self._auto_subscriber.is_asking

    # Called by other parts of this adapter

    def take_ready(self) -> None:
        """Take the nodes that waited and are ready."""
        if self._arrivals.ready_batches and not self._backlog:
            self._backlog.append(b"")
            self.resume()
            self.wake()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run *call* in a later turn of the loop."""
        self._post(call)

    def community_added(self, community: str) -> None:
        """Join the channel of a community that has just got one, if the peer wants it."""
        if community in self.wanted and (channel := self._nodes.channel(community)) is not None:
            self.join(channel)
        self._auto_subscriber.community_added(community)

    def join(self, channel: str) -> None:
        """Subscribe to *channel*, if that is allowed."""
        if channel not in self.channels and self._rights.allows(self, "subscribe", channel):
            self._delivery.settle(channel)
            self.bus.subscribe(self, channel)
            self._presence.joined(channel, self)

    def request(self, frame: Frame) -> int:
        """Send a request to the peer; return its id."""
        id = self._request_id()
        self.send(codec.encode(frame._replace(id=id)))
        return id

    # Requests

    def _step(self) -> bool:
        """Handle the next frame, or continue with the last; return False if there is none."""
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
            self._count_refusal("malformed")
            self.status(error.message_id, error.status)
        except ProtocolError as error:  # the connection ends after a last answer
            self._count_refusal("malformed")
            if isinstance(error, codec.HttpRequest):
                self.send(codec.HTTP_ANSWER)
            else:
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
        """Reset the timeouts: after a complete message the peer may be silent for any time."""
        self._silent_seconds, self.handshake = 0, None

    def _begin(self, frame: Frame) -> Callable[[], None]:
        if isinstance(frame, codec.Announce):
            batch = self._arrivals.batch_of(frame)
            return partial(self._enter, batch) if len(batch.nodes) != 1 else self._burst(batch)
        if isinstance(frame, codec.Response) and self._auto_subscriber.is_expected(frame.id):
            return partial(self._enter, self._auto_subscriber.batch_of(frame))
        if isinstance(frame, codec.Response):
            return partial(self._answered, self._arrivals.batch_of_response(frame), frame)
        return partial(self._do, frame)

    def _burst(self, first: NodeBatch) -> Callable[[], None]:
        """Take announces of one node each together if they arrived together."""
        burst = deque((first,))
        while len(burst) < MAX_RUN and (another := self._parser.next_announce()) is not None:
            burst.append(self._arrivals.batch_of(another))
        return partial(self._arrivals.take_burst, burst)

    def _enter(self, batch: NodeBatch) -> None:
        self._arrivals.take(batch)

    def _answered(self, batch: NodeBatch | None, frame: codec.Response) -> None:
        if batch is not None:  # else the response was not requested
            self._enter(batch)
            self._arrivals.finish_response(batch, frame)

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
        """Accept every version 0; the codec refuses all others."""
        self.status(frame.id, StatusCode.OK)

    def _list(self, frame: codec.List) -> None:
        """Respond with the newest nodes of a type, newest first."""
        self._rights.pace(self, "")
        self._auto_subscriber.peer_lists(frame)
        quantity = min(frame.quantity, MAX_NODES)
        self._responder.respond(frame.id, lambda: self._reader.newest(self, frame.node_type, quantity))

    def _query(self, frame: codec.Query) -> None:
        """Respond with the nodes that are held, in the order of the request."""
        self._rights.pace(self, "", len(frame.node_ids))
        self._responder.respond(frame.id, lambda: self._reader.by_id(self, frame.node_ids))

    def _ancestry(self, frame: codec.Ancestry) -> None:
        """Respond with the ancestors of a node, shallowest first."""
        self._rights.pace(self, "")
        levels, above = min(frame.levels, MAX_NODES), self._reader.ancestors(self, frame.node_id)
        if above is None:
            raise SproutError("no such node", StatusCode.UNKNOWN_NODE)
        self._responder.respond(frame.id, lambda: above(levels), nearest_last=True)

    def _leaves_of(self, frame: codec.LeavesOf) -> None:
        """Respond with the newest nodes among a node and its descendants, oldest first."""
        self._rights.pace(self, "")
        id, quantity = frame.node_id, min(frame.quantity, MAX_NODES)
        self._responder.respond(frame.id, lambda: self._reader.descendants(self, id, quantity), nearest_last=True)

    def _subscribe(self, frame: codec.Subscribe) -> None:
        """Subscribe to a community, known or not: an unknown one is joined when it arrives."""
        self._auto_subscriber.peer_subscribes(frame.node_id)
        if len(self.wanted) >= self.bus.subscriptions and frame.node_id not in self.wanted:
            raise SproutError("too many subscriptions")
        channel = self._nodes.channel(frame.node_id)
        self._rights.pace(self, channel or "")
        if channel is not None:
            self._rights.check(self, "subscribe", channel)
            self.join(channel)
        self.wanted[frame.node_id] = None
        self.status(frame.id, StatusCode.OK)
        self._auto_subscriber.subscribe()

    def _unsubscribe(self, frame: codec.Unsubscribe) -> None:
        """Unsubscribe from a community; it need not be subscribed to."""
        self.wanted.pop(frame.node_id, None)
        channel = self._nodes.channel(frame.node_id)
        if channel in self.channels:
            self._delivery.settle(channel)
            self.stop_listening(channel)
        self.status(frame.id, StatusCode.OK)

    def _acknowledged(self, frame: codec.Status) -> None:
        """Handle a status: of an announce it is ignored, of a request it means that no nodes follow."""
        self._arrivals.response_refused(frame.id)
        self._auto_subscriber.handle_status(frame)

    def _answer_lost(self) -> None:
        """Close the connection: the rest of a response cannot be read, and it must not look complete."""
        self._discard()
        self.close(1011, "an answer cannot be read any more")

    def _request_id(self) -> int:
        """The id of the next request; announces that precede it get their ids first."""
        self._rewrite(lambda data: in_announces(data, self._take_id))
        return self._take_id()


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
