"""One Streamr client: what each type of control frame does on the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from adapters.streamr.publishing.publishing import (
    as_sent,
    check_direct,
    check_key_exchange,
    ids_of,
    out_of_range,
)
from adapters.streamr.publishing.runs import Doubt, Run
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
from adapters.streamr.wire.invalid import Invalid
from adapters.streamr.wire.message import GROUP_KEY_ROTATE
from gateway.core.errors import AlreadySubscribed, Forbidden, NotSubscribed, RequestError, UnknownChannel
from gateway.core.message import Message, Peer
from gateway.core.outbox import MAX_STREAMS
from gateway.core.principal import Principal
from gateway.core.session import Session

from .client_session import ClientSession
from .resends import Resending, find

if TYPE_CHECKING:
    from adapters.streamr.parts import Parts

MAX_INBOXES = 4  # names of a peer's inbox in one channel: its numbers and its address


class StreamrSession(ClientSession):
    """A client of the broker: what it hears, what it says and what is resent to it."""

    def __init__(
        self, parts: Parts, principal: Principal, versions: tuple[int | None, int | None], max_outbox: int
    ) -> None:
        super().__init__(parts, principal, versions, max_outbox)
        self._forms = parts.forms
        self._heard: set[str] = set()  # channels of which it wants everything, not only what is in its inbox there
        self._askers: dict[str, Principal] = {}  # by channel, who asked to hear it last
        self._inboxes: dict[str, dict[str, None]] = {}  # by channel, as the peer calls them
        self.resends: dict[Resending, None] = {}  # under way

    def handle(self, data: bytes) -> None:
        """Act on one frame; whatever it is, the connection lives."""
        try:
            frame = decode_control(data)
        except StreamrError as error:
            self.record_malformed()
            if not self._negotiated and data.lstrip().startswith(b"[1,"):
                self._speak(1)
            self.send(self.failure(error.message, error.code, error.request_id))
            return
        if not self._negotiated:
            self._speak(frame.version, frame.message.version if isinstance(frame, PublishRequest) else None)
            self._negotiated = True
        self._act(frame)

    def receive_all(self, messages: Sequence[bytes]) -> None:
        """Take what the peer sent at once: what one publisher says in a row in one place is said as a run."""
        if len(messages) == 1:
            self.receive_data(messages[0])  # a run of one takes longer
            return
        run: Run | None = None
        for data in messages:
            if run is None or (said := run.read(data)) is None:
                if run is not None:
                    run.say()
                if (run := self._begin(data)) is None:
                    continue
                said = run.first
            try:
                run.add(said)
            except RequestError as error:
                run.say()
                run.refuse(said, error)
                run = None
        if run is not None:
            run.say()

    def _act(self, frame: ControlFrame) -> None:
        try:
            VERBS.get(frame.type, StreamrSession.unknown)(self, frame)
        except RequestError as error:
            self.refuse(frame, error)

    def _begin(self, data: bytes) -> Run | None:
        """Begin a run with what is said in *data*; where that has to be looked at by itself, do so and return None."""
        request = decode_publish_fast(data) if self._negotiated and self.ready else None
        if request is None:
            self.receive_data(data)
            return None
        try:
            return Run(self._parts.context, self._parts.saying, self, request, self)
        except (Doubt, RequestError):
            self._act(request)
            return None

    def deliver(self, message: Message) -> None:
        """Queue what was said on a stream, or to this peer in its inbox."""
        if message.target is not None:
            self.put(message.form(f"{self.form_key}/@{self._inbox(message.channel, message.target)}", self._forms.form))
        elif message.channel in self._heard:
            self.put(message.forms.get(self.form_key) or message.form(self.form_key, self._forms.form))

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origin: Session | None) -> int:
        """As `deliver`, for many of one dialect."""
        first, frames = sessions[0], []
        if run[0].channel in first._heard:
            forms = (each.forms.get(first.form_key) or each.form(first.form_key, first._forms.form) for each in run)
            frames = [form for form in forms if isinstance(form, bytes)]
        return cls.fan_out(frames, sessions, origin) if frames else 0

    def dialect(self, channel: str) -> str:
        """The versions that it speaks, where it hears what is said on *channel*; who has an inbox there does not."""
        return self.form_key if channel in self._heard else ""

    def fits(self, message: Message) -> bool:
        """Whether a frame of this peer's versions has room for a direct message."""
        return self._forms.fits(message, self.form_key)

    def subscription_principal(self, channel: str) -> Principal:
        """Who asked for *channel*: each request may carry a token of its own."""
        return self._askers.get(channel, self.principal)

    def is_still_allowed(self) -> bool:
        """Whether it may still be told what is being resent, and hear the key exchanges that it does."""
        resent = (resending.asked for resending in self.resends if resending.asked is not None)
        known, askers = self._parts.context.access.has_any_right, self._parts.exchange.askers(self)
        return all(self.bus.allowed(who, "history", channel) for who, channel in resent) and all(
            any(map(known, each)) for each in askers
        )

    @property
    def saturated(self) -> bool:
        """Whether the next request has to wait: also until one of many resends is over."""
        return len(self.resends) >= MAX_STREAMS or super().saturated

    @property
    def held_size(self) -> int:
        """About how many bytes are kept for the peer, with its messages that wait for their keys."""
        return super().held_size + self._parts.participant.borne(self)

    def release_memory(self) -> None:
        """Let go of what is kept for the peer: what waits for its key was taken, and is said as it came."""
        self._parts.participant.give_up(self)
        super().release_memory()

    def goodbye(self) -> None:
        """The gateway stops; what waits for a key waits no more."""
        self._parts.participant.release()
        super().goodbye()

    def receive_eof(self) -> None:
        """The connection is over."""
        for resending in self.resends:
            resending.end()
        self.resends.clear()
        self._parts.exchange.forget(self)
        super().receive_eof()

    # What the types of frames do

    def subscribe(self, request: SubscribeRequest) -> None:
        """Hear a stream partition, an inbox or a key exchange from now on; once more changes nothing."""
        stream, partition = request.stream_id, request.stream_partition
        inbox, address = inbox_of(stream), key_exchange_address(stream)
        partitions = self._parts.context.streams.partitions(stream)
        if partition >= partitions:
            raise Invalid(out_of_range(partition, partitions))
        if address is not None:
            self._parts.exchange.listen(self, address, self._admit_to_listen(request, address))
        elif inbox is not None:
            self._open_inbox(request, inbox)
        else:
            self._hear(request, channel_of(stream, partition))
        self._answer(ControlType.SUBSCRIBED, request)

    def unsubscribe(self, request: UnsubscribeRequest) -> None:
        """Hear it no more."""
        stream, partition = request.stream_id, request.stream_partition
        inbox, address = inbox_of(stream), key_exchange_address(stream)
        if address is not None:
            self._parts.exchange.ignore(self, address)
        elif inbox is not None and stream in self._inboxes.get(inbox.stream_id, ()):
            del self._inboxes[inbox.stream_id][stream]
            self._leave(inbox.stream_id)
        elif (channel := channel_of(stream, partition)) in self._heard:
            self._heard.remove(channel)
            self.bus.dialect_changed(channel)
            self._leave(channel)
        elif stream.lower() == self.address:
            self._parts.exchange.ignore(self, self.address)
        else:
            raise NotSubscribed(channel)
        self._answer(ControlType.UNSUBSCRIBED, request)

    def publish(self, request: PublishRequest) -> None:
        """Say something; silence means that it was taken."""
        message = request.message
        stream, partition = message.id.stream_id, message.id.stream_partition
        if (address := key_exchange_address(stream)) is not None:
            self.pace(stream)
            check_key_exchange(message, self.bus.clock())
            signer = Principal(f"{NAME}:{message.id.publisher_id.lower()}", self.principal.address)
            self._admit_to_exchange("publish", stream, signer, self.asker(request)[0])
            self._parts.exchange.send(message, address)
        elif (inbox := inbox_of(stream)) is not None:
            self._say_directly(request, self._channel(inbox.stream_id), inbox)
        elif message.message_type == GROUP_KEY_ROTATE:
            self._rotate(request, self._channel(channel_of(stream, partition)))
        else:
            self._say(request, self._channel(channel_of(stream, partition)))

    def resend(self, request: ResendRequest) -> None:
        """Tell what is stored of a stream partition: Resending, the messages and Resent, or NoResend."""
        stream, partition = request.stream_id, request.stream_partition
        partitions = self._parts.context.streams.partitions(stream)
        if partition >= partitions:
            raise Invalid(out_of_range(partition, partitions))
        found: Iterator[Message | None] = iter(())  # key exchanges and inboxes are never stored
        asked = None
        if key_exchange_address(stream) is None and inbox_of(stream) is None:
            channel = self._channel(channel_of(stream, partition))
            asked = self.asker(request).principal, channel
            if not self.bus.allowed(asked[0], "history", channel):
                raise Forbidden("history", channel)
            self.pace(channel)
            shows = partial(self._forms.shows, self.message_version)
            found = find(self._parts.stored, channel, request, shows)
        Resending(self, self._forms, self._parts.context.services.answer_scheduler, request, found, asked)

    def unknown(self, frame: ControlFrame) -> None:
        """Refuse what only servers send."""
        raise StreamrError(f"Unknown request type: {int(frame.type)}")

    def _admit_to_exchange(self, verb: str, stream: str, *askers: Principal) -> None:
        """Raise unless one of *askers* may do something here: a key exchange is no channel that rights could name."""
        if not any(map(self._parts.context.access.has_any_right, askers)):
            raise Forbidden(verb, stream)

    def _admit_to_listen(self, request: SubscribeRequest, address: str) -> tuple[Principal, ...]:
        """Raise unless a session token of *address* is shown, now or before, and its user may do something here.

        Returns by whose right that is.
        """
        asker, shown = self.asker(request)
        if (shown or self.address) != address:
            raise Forbidden("subscribe", request.stream_id)
        askers = asker, Principal(f"{NAME}:{address}")
        self._admit_to_exchange("subscribe", request.stream_id, *askers)
        return askers

    # Listening

    def hears(self, channel: str) -> bool:
        """Whether the peer has subscribed to the stream partition that *channel* is."""
        return channel in self._heard

    def _channel(self, name: str) -> str:
        return self.bus.channels.channel(NAME, name)

    def _hear(self, request: SubscribeRequest, channel: str) -> None:
        """Hear a channel, if that is allowed.

        Clients of 3.x subscribe by themselves to the stream that is called like their address, where keys were
        exchanged at their time, and hang up where they may not: it is as good as the key exchange's, and as silent.
        """
        try:
            self._listen(request, channel)
        except (Forbidden, UnknownChannel):
            own = self.asker(request).address or self.address
            if own is None or request.stream_id.lower() != own:
                raise
            self._parts.exchange.listen(self, own, self._admit_to_listen(request, own))
        else:
            self._heard.add(channel)
            self.bus.dialect_changed(channel)

    def _listen(self, request: SubscribeRequest, channel: str) -> None:
        principal, _ = self.asker(request)
        self._channel(channel)
        if not self.bus.allowed(principal, "subscribe", channel):
            raise Forbidden("subscribe", channel)
        self.pace(channel)
        self._askers[channel] = principal
        with suppress(AlreadySubscribed):  # the broker answers success, and so do we
            self.bus.subscribe(self, channel)

    def _leave(self, channel: str) -> None:
        if channel not in self._heard and not self._inboxes.get(channel):
            self._inboxes.pop(channel, None)
            self._askers.pop(channel, None)
            self.bus.unsubscribe(self, channel)

    def _open_inbox(self, request: SubscribeRequest, inbox: Inbox) -> None:
        self.asker(request)  # which may tell who this is
        mine = {self.peer.number, self.who.number, self.address}
        names = self._inboxes.get(inbox.stream_id, {})
        if inbox.peer not in mine or len(names.keys() | {request.stream_id}) > MAX_INBOXES:
            raise Forbidden("subscribe", request.stream_id)
        self._listen(request, inbox.stream_id)
        self._inboxes[inbox.stream_id] = names | {request.stream_id: None}

    def _inbox(self, channel: str, target: Peer) -> str:
        """Who an inbox in *channel* is for, in the words this peer used, else as others would address it."""
        for name in self._inboxes.get(channel, ()):
            return name.rpartition("/@")[2]
        return target.identity if target.protocol == NAME and target.identity else str(target.number)

    # Saying

    def _say(self, request: PublishRequest, channel: str) -> None:
        # A signature says who wrote the message, and nothing of who brings it: the connection stays what it was.
        self.pace(channel)
        self._identify(request)
        self._parts.saying.say(self, request, channel, partial(self.refuse, request), self)

    def _rotate(self, request: PublishRequest, channel: str) -> None:
        # A group-key message like those of the key exchange, but for all who read the stream: not bridged, not kept.
        self.pace(channel)
        self._parts.saying.check(self, request, "publish", channel)
        self._parts.saying.check_signature(request.message)
        self._parts.participant.learn(request.message)
        sessions = (session for session in self.bus.sessions() if isinstance(session, StreamrSession))
        self._parts.exchange.hand(request.message, (session for session in sessions if session.hears(channel)))

    def _say_directly(self, request: PublishRequest, channel: str, inbox: Inbox) -> None:
        self.pace(channel)
        self._parts.saying.check(self, request, "direct", channel)
        check_direct(request.message, self.bus.clock(), self._parts.started)
        peer = self.bus.peers.find(NAME, inbox.peer) if isinstance(inbox.peer, str) else None
        number = inbox.peer if isinstance(inbox.peer, int) else -1 if peer is None else peer.number
        sender = self._parts.saying.sender(self, request)
        sent = as_sent(request.message, ids_of(request.message), channel, sender, self.control)
        if not self.bus.direct(sent, number):
            raise UnknownChannel(request.message.id.stream_id)


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
