"""A client of the Streamr control protocol: what each type of control frame does on the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from adapters.streamr.publishing.conversion import ids_of, to_bus_message
from adapters.streamr.publishing.publish_runs import PublishRun
from adapters.streamr.publishing.validation import check_direct, check_key_exchange, out_of_range
from adapters.streamr.wire.codec import decode_control, decode_publish_fast
from adapters.streamr.wire.control import (
    ControlFrame,
    ControlType,
    PublishRequest,
    ResendRequest,
    SubscribeRequest,
    UnsubscribeRequest,
)
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, Inbox, channel_of, inbox_of, key_exchange_address
from adapters.streamr.wire.message import GROUP_KEY_ROTATE, StreamMessage
from adapters.streamr.wire.validation_errors import InvalidMessage
from gateway.core.directs import direct_outcome_unknown
from gateway.core.errors import AlreadySubscribed, Forbidden, NotSubscribed, RequestError, UnknownChannel
from gateway.core.message import Message, Peer
from gateway.core.outbox import MAX_STREAMS
from gateway.core.principal import Principal
from gateway.core.subscriber import Subscriber

from .base_session import BaseSession
from .resends import ActiveResend, find_messages

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts

MAX_INBOXES = 4  # names of a peer's inbox in one channel: its numbers and its address


class StreamrSession(BaseSession):
    """A connected client: its subscriptions, what it publishes, and its resends."""

    def __init__(
        self, parts: StreamrParts, principal: Principal, versions: tuple[int | None, int | None], max_outbox: int
    ) -> None:
        super().__init__(parts, principal, versions, max_outbox)
        self._forms = parts.forms
        self._subscribed: set[str] = set()  # channels; those where it only has an inbox are not among them
        self._principals: dict[str, Principal] = {}  # by channel, who subscribed to it last
        self._inboxes: dict[str, dict[str, None]] = {}  # by channel, the names that the peer used
        self.resends: dict[ActiveResend, None] = {}  # under way

    def handle(self, data: bytes) -> None:
        """Act on one frame; an invalid one is answered with an error, and the connection lives."""
        try:
            frame = decode_control(data)
        except StreamrError as error:
            self.record_malformed()
            if not self._negotiated and data.lstrip().startswith(b"[1,"):
                self._set_versions(1)
            self.send(self.error_frame(error.message, error.code, error.request_id))
            return
        if not self._negotiated:
            self._set_versions(frame.version, frame.message.version if isinstance(frame, PublishRequest) else None)
            self._negotiated = True
        self._dispatch(frame)

    def receive_all(self, messages: Sequence[bytes]) -> None:
        """Act on frames that arrived together; consecutive messages of one publisher are published as a run."""
        if len(messages) == 1:
            self.receive_data(messages[0])  # a run of one would take longer
            return
        run: PublishRun | None = None
        for data in messages:
            if run is None or (request := run.read(data)) is None:
                if run is not None:
                    run.publish()
                if (run := self._begin_run(data)) is None:
                    continue
                request = run.first
            try:
                run.add(request)
            except RequestError as error:
                run.publish()
                self.refuse(request, error)
                run = None
        if run is not None:
            run.publish()

    def may_log(self, data: bytes) -> bool:
        """Whether it publishes, shows a token or key for the first time, or cannot be read."""
        try:
            frame = decode_control(data)
        except StreamrError:
            return True
        if not isinstance(frame, SubscribeRequest | ResendRequest):
            return not isinstance(frame, UnsubscribeRequest)
        return not {frame.session_token, frame.api_key} - {None, ""} <= self._users.keys()

    def _dispatch(self, frame: ControlFrame) -> None:
        try:
            VERBS.get(frame.type, StreamrSession.unknown)(self, frame)
        except RequestError as error:
            self.refuse(frame, error)

    def _begin_run(self, data: bytes) -> PublishRun | None:
        """Begin a run with the request in *data*; if it cannot begin one, act on it and return None."""
        request = decode_publish_fast(data) if self._negotiated and self.ready else None
        if request is None:
            self.receive_data(data)
            return None
        run = PublishRun.begin(self._parts.context, self._parts.publish_handler, self, request, self)
        if run is None:
            self._dispatch(request)
        return run

    def deliver(self, message: Message) -> None:
        """Queue a message of a stream, or a direct message for this peer's inbox."""
        if message.target is not None:
            self.put(message.form(f"{self.form_key}/@{self._inbox(message.channel, message.target)}", self._forms.form))
        elif message.channel in self._subscribed:
            self.put(message.forms.get(self.form_key) or message.form(self.form_key, self._forms.form))

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origins: Sequence[Subscriber | None]) -> int:
        """As `deliver`, for sessions of one dialect."""
        first, frames = sessions[0], []
        if run[0].channel in first._subscribed:
            forms = (each.forms.get(first.form_key) or each.form(first.form_key, first._forms.form) for each in run)
            frames = [form for form in forms if isinstance(form, bytes)]
        return cls.fan_out(frames, sessions, origins) if frames else 0

    def dialect(self, channel: str) -> str:
        """Its form key if it has subscribed to *channel*; empty if it only has an inbox there."""
        return self.form_key if channel in self._subscribed else ""

    def fits(self, message: Message) -> bool:
        """Whether a direct *message* fits in a frame of this peer's versions."""
        return self._forms.fits(message, self.form_key)

    def subscription_principal(self, channel: str) -> Principal:
        """The principal that subscribed to *channel*: each request may carry a token of its own."""
        return self._principals.get(channel, self.principal)

    def is_still_allowed(self) -> bool:
        """Whether it may still read what is being resent, and listen to its key exchanges."""
        resent = (resend.authorization for resend in self.resends if resend.authorization is not None)
        known, subscriptions = self._parts.context.access.has_any_right, self._parts.key_exchange.principals(self)
        return all(self.bus.allowed(who, "history", channel) for who, channel in resent) and all(
            any(map(known, each)) for each in subscriptions
        )

    @property
    def overloaded(self) -> bool:
        """Whether the next request has to wait: for room in the outbox, or for the end of a resend."""
        return len(self.resends) >= MAX_STREAMS or super().overloaded

    @property
    def held_size(self) -> int:
        """About how many bytes are kept for the peer, including its messages that wait for their keys."""
        return super().held_size + self._parts.participant.waiting_size(self)

    def release_memory(self) -> None:
        """Free what is kept for the peer; its messages that wait for their keys are published encrypted."""
        self._parts.participant.give_up(self)
        super().release_memory()

    def goodbye(self) -> None:
        """The gateway stops; messages that wait for a key are published encrypted."""
        self._parts.participant.release()
        super().goodbye()

    def receive_eof(self) -> None:
        """The connection is closed."""
        for resend in self.resends:
            resend.release()
        self.resends.clear()
        self._parts.key_exchange.remove(self)
        super().receive_eof()

    # What the types of frames do

    def subscribe(self, request: SubscribeRequest) -> None:
        """Subscribe to a stream partition, an inbox or a key exchange; to do so again changes nothing."""
        stream, partition = request.stream_id, request.stream_partition
        inbox, address = inbox_of(stream), key_exchange_address(stream)
        partitions = self._parts.context.streams.partitions(stream)
        if partition >= partitions:
            raise InvalidMessage(out_of_range(partition, partitions))
        if address is not None:
            self._parts.key_exchange.subscribe(self, address, self._authorize_key_listening(request, address))
        elif inbox is not None:
            self._open_inbox(request, inbox)
        else:
            self._subscribe_to_channel(request, channel_of(stream, partition))
        self._answer(ControlType.SUBSCRIBED, request)

    def unsubscribe(self, request: UnsubscribeRequest) -> None:
        """Unsubscribe from a stream partition, an inbox or a key exchange."""
        stream, partition = request.stream_id, request.stream_partition
        inbox, address = inbox_of(stream), key_exchange_address(stream)
        if address is not None:
            self._parts.key_exchange.unsubscribe(self, address)
        elif inbox is not None and stream in self._inboxes.get(inbox.stream_id, ()):
            del self._inboxes[inbox.stream_id][stream]
            self._leave(inbox.stream_id)
        elif (channel := channel_of(stream, partition)) in self._subscribed:
            self.bus.gathering.settle(channel)
            self._subscribed.remove(channel)
            self.bus.dialect_changed(channel)
            self._leave(channel)
        elif stream.lower() == self.address:
            self._parts.key_exchange.unsubscribe(self, self.address)
        else:
            raise NotSubscribed(channel)
        self._answer(ControlType.UNSUBSCRIBED, request)

    def publish(self, request: PublishRequest) -> None:
        """Publish a message; one that is accepted gets no answer."""
        message = request.message
        stream, partition = message.id.stream_id, message.id.stream_partition
        if (address := key_exchange_address(stream)) is not None:
            self.pace(stream)
            check_key_exchange(message, self.bus.clock())
            signer = Principal(f"{NAME}:{message.id.publisher_id.lower()}", self.principal.network)
            self._authorize_key_exchange("publish", stream, signer, self.authenticate(request).principal)
            self._parts.key_exchange.send(message, address)
        elif (inbox := inbox_of(stream)) is not None:
            self._publish_direct(request, self._channel(inbox.stream_id), inbox)
        elif message.message_type == GROUP_KEY_ROTATE:
            self._deliver_key_rotation(request, self._channel(channel_of(stream, partition)))
        else:
            self._publish(request, self._channel(channel_of(stream, partition)))

    def resend(self, request: ResendRequest) -> None:
        """Send what is stored of a stream partition: Resending, the messages and Resent, or NoResend."""
        stream, partition = request.stream_id, request.stream_partition
        partitions = self._parts.context.streams.partitions(stream)
        if partition >= partitions:
            raise InvalidMessage(out_of_range(partition, partitions))
        found: Iterator[Message | None] = iter(())  # key exchanges and inboxes are never stored
        authorization = None
        if key_exchange_address(stream) is None and inbox_of(stream) is None:
            channel = self._channel(channel_of(stream, partition))
            authorization = self.authenticate(request).principal, channel
            if not self.bus.allowed(authorization[0], "history", channel):
                raise Forbidden("history", channel)
            self.pace(channel)
            self.bus.gathering.settle(channel)
            shows = partial(self._forms.can_show, self.message_version)
            found = find_messages(self._parts.stored, channel, request, shows)
        ActiveResend(self, self._forms, self._parts.context.services.answer_scheduler, request, found, authorization)

    def unknown(self, frame: ControlFrame) -> None:
        """Refuse a type that only servers send."""
        raise StreamrError(f"Unknown request type: {int(frame.type)}")

    def _authorize_key_exchange(self, verb: str, stream: str, *principals: Principal) -> None:
        """Raise unless one of *principals* has any right: a key exchange is no channel that a right could name."""
        if not any(map(self._parts.context.access.has_any_right, principals)):
            raise Forbidden(verb, stream)

    def _authorize_key_listening(self, request: SubscribeRequest, address: str) -> tuple[Principal, ...]:
        """Raise unless a session token of *address* was shown, with *request* or before, and its user has any right.

        Returns the principals of whose rights one has to last.
        """
        principal, shown = self.authenticate(request)
        if (shown or self.address) != address:
            raise Forbidden("subscribe", request.stream_id)
        principals = principal, Principal(f"{NAME}:{address}")
        self._authorize_key_exchange("subscribe", request.stream_id, *principals)
        return principals

    # Subscriptions

    def is_subscribed(self, channel: str) -> bool:
        """Whether the peer has subscribed to the stream partition that *channel* is."""
        return channel in self._subscribed

    def _channel(self, name: str) -> str:
        return self.bus.channels.channel(NAME, name)

    def _subscribe_to_channel(self, request: SubscribeRequest, channel: str) -> None:
        """Subscribe to a channel.

        Clients of 3.x always subscribe to the stream named after their address, on which keys were exchanged at their
        time, and disconnect if that is refused: it is treated as a subscription to the address's key exchange.
        """
        try:
            self._listen(request, channel)
        except (Forbidden, UnknownChannel):
            own = self.authenticate(request).address or self.address
            if own is None or request.stream_id.lower() != own:
                raise
            self._parts.key_exchange.subscribe(self, own, self._authorize_key_listening(request, own))
        else:
            self._subscribed.add(channel)
            self.bus.dialect_changed(channel)

    def _listen(self, request: SubscribeRequest, channel: str) -> None:
        principal, _ = self.authenticate(request)
        self._channel(channel)
        if not self.bus.allowed(principal, "subscribe", channel):
            raise Forbidden("subscribe", channel)
        self.pace(channel)
        self._principals[channel] = principal
        with suppress(AlreadySubscribed):  # the broker answers success, and so does this
            self.bus.subscribe(self, channel)

    def _leave(self, channel: str) -> None:
        if channel not in self._subscribed and not self._inboxes.get(channel):
            self._inboxes.pop(channel, None)
            self._principals.pop(channel, None)
            self.stop_listening(channel)

    def _open_inbox(self, request: SubscribeRequest, inbox: Inbox) -> None:
        self.authenticate(request)  # it may identify the connection
        own = {self.peer.number, self.who.number, self.address}
        names = self._inboxes.get(inbox.stream_id, {})
        if inbox.peer not in own or len(names.keys() | {request.stream_id}) > MAX_INBOXES:
            raise Forbidden("subscribe", request.stream_id)
        self._listen(request, inbox.stream_id)
        self._inboxes[inbox.stream_id] = names | {request.stream_id: None}

    def _inbox(self, channel: str, target: Peer) -> str:
        """The name of *target*'s inbox in *channel*: the one this peer used, else the one others would use."""
        for name in self._inboxes.get(channel, ()):
            return name.rpartition("/@")[2]
        return target.identity if target.protocol == NAME and target.identity else str(target.number)

    # Publishing

    def _publish(self, request: PublishRequest, channel: str) -> None:
        # A signature names the author of the message, not its sender: it does not identify the connection.
        self.pace(channel)
        self._identify(request)
        self._parts.publish_handler.publish(self, request, channel, partial(self.refuse, request), self)

    def _deliver_key_rotation(self, request: PublishRequest, channel: str) -> None:
        # A group-key message for all subscribers of the stream: it is neither bridged nor logged.
        self.pace(channel)
        self._parts.publish_handler.check(self, request, "publish", channel)
        self._parts.publish_handler.check_signature(request.message)
        self.bus.gathering.settle(channel, origin=self)
        rotate(self._parts, request.message, channel)
        self._parts.key_exchange.elsewhere(request.message)

    def _publish_direct(self, request: PublishRequest, channel: str, inbox: Inbox) -> None:
        self.pace(channel)
        self._parts.publish_handler.check(self, request, "direct", channel)
        check_direct(request.message, self.bus.clock(), self._parts.started)
        peer = self.bus.peers.find(NAME, inbox.peer) if isinstance(inbox.peer, str) else None
        number = inbox.peer if isinstance(inbox.peer, int) else -1 if peer is None else peer.number
        sender = self._parts.publish_handler.verified_sender(self, request)
        sent = to_bus_message(request.message, ids_of(request.message), channel, sender, self.control)
        self.bus.gathering.settle(origin=self)
        self.bus.send_direct(sent, number, partial(self._direct_answered, request))

    def _direct_answered(self, request: PublishRequest, receivers: int | None) -> None:
        if receivers is None:
            self.refuse(request, direct_outcome_unknown())
        elif not receivers:
            self.refuse(request, UnknownChannel(request.message.id.stream_id))


def rotate(parts: StreamrParts, message: StreamMessage, channel: str) -> None:
    """Take a checked GroupKeyRotate, and deliver it to all who have subscribed to *channel* here."""
    parts.participant.learn(message)
    sessions = (session for session in parts.context.bus.sessions() if isinstance(session, StreamrSession))
    parts.key_exchange.deliver(message, (session for session in sessions if session.is_subscribed(channel)))


# fmt: off
VERBS: dict[ControlType, Callable[[StreamrSession, Any], None]] = {
    ControlType.PUBLISH:      StreamrSession.publish,
    ControlType.SUBSCRIBE:    StreamrSession.subscribe,
    ControlType.UNSUBSCRIBE:  StreamrSession.unsubscribe,
    ControlType.RESEND_LAST:  StreamrSession.resend,
    ControlType.RESEND_FROM:  StreamrSession.resend,
    ControlType.RESEND_RANGE: StreamrSession.resend,
}
# fmt: on
