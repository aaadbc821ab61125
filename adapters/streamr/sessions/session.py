"""One Streamr client: what each type of control frame does on the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from adapters.streamr.model.users import User
from adapters.streamr.publishing.publishing import (
    as_sent,
    check_direct,
    check_key_exchange,
    ids_of,
    out_of_range,
)
from adapters.streamr.publishing.runs import Doubt, Run
from adapters.streamr.publishing.saying import charge
from adapters.streamr.wire.codec import FORMS, decode_control, encode, usual
from adapters.streamr.wire.control import (
    Answer,
    ControlFrame,
    ControlType,
    Failure,
    Publish,
    Request,
    Resend,
    Subscribe,
    Unsubscribe,
)
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME, Inbox, channel_of, inbox_of, key_exchange_address
from adapters.streamr.wire.invalid import Forged, Invalid
from adapters.streamr.wire.message import GROUP_KEY_ROTATE
from adapters.streamr.wire.refusals import refusal
from gateway.core.errors import AlreadySubscribed, Forbidden, NotSubscribed, RequestError, UnknownChannel
from gateway.core.frames import text_frame
from gateway.core.message import Message, Peer
from gateway.core.outbox import MAX_STREAMS
from gateway.core.principal import Principal
from gateway.core.session import Session

from .resends import Resending, find

if TYPE_CHECKING:
    from adapters.streamr.adapter import StreamrAdapter

MAX_INBOXES = 4  # names of a peer's inbox in one channel: its numbers and its address
MAX_TOKENS = 64  # tokens and keys that one connection may show: a node carries the requests of several users

# The message version of a peer that negotiates none: S1 has only 30, S0 and S2 only 32.
UNNEGOTIATED = {1: 30, 2: 32}


class StreamrSession(Session):
    """A connected client that asked for *versions*, of control frames and messages; its first frame tells the rest."""

    protocol = NAME
    text = True
    echo = True

    def __init__(
        self, adapter: StreamrAdapter, principal: Principal, versions: tuple[int | None, int | None], max_outbox: int
    ) -> None:
        super().__init__(adapter.bus, principal)
        self.max_outbox = max_outbox
        self._adapter = adapter
        self._asked = versions
        self._negotiated = None not in versions
        self._speak(versions[0] or 2)
        self._heard: set[str] = set()  # channels of which it wants everything, not only what is in its inbox there
        self._askers: dict[str, Principal] = {}  # by channel, who asked to hear it last
        self._inboxes: dict[str, dict[str, None]] = {}  # by channel, as the peer calls them
        self.resends: dict[Resending, None] = {}  # under way
        self._users: dict[str, User] = {}  # by the tokens and keys that it showed; it ends with any of them

    def handle(self, data: bytes) -> None:
        """Act on one frame; whatever it is, the connection lives."""
        try:
            frame = decode_control(data)
        except StreamrError as error:
            self.offend()
            if not self._negotiated and data.lstrip().startswith(b"[1,"):
                self._speak(1)
            self.send(self.failure(error.message, error.code, error.request_id))
            return
        if not self._negotiated:
            self._speak(frame.version, frame.message.version if isinstance(frame, Publish) else None)
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
        request = usual(data) if self._negotiated and self.ready else None
        if request is None:
            self.receive_data(data)
            return None
        try:
            return Run(self._adapter, self, request)
        except (Doubt, RequestError):
            self._act(request)
            return None

    def deliver(self, message: Message) -> None:
        """Queue what was said on a stream, or to this peer in its inbox."""
        if message.target is not None:
            self.put(message.form(f"{self.form_key}/@{self._inbox(message.channel, message.target)}", self._form))
        elif message.channel in self._heard:
            self.put(message.forms.get(self.form_key) or message.form(self.form_key, self._form))

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origin: Session | None) -> int:
        """As `deliver`, for many of one dialect."""
        first, frames = sessions[0], []
        if run[0].channel in first._heard:
            forms = (each.forms.get(first.form_key) or each.form(first.form_key, first._form) for each in run)
            frames = [form for form in forms if isinstance(form, bytes)]
        return cls.put_all(frames, sessions, origin) if frames else 0

    def dialect(self, channel: str) -> str:
        """The versions that it speaks, where it hears what is said on *channel*; who has an inbox there does not."""
        return self.form_key if channel in self._heard else ""

    def fits(self, message: Message) -> bool:
        """Whether a frame of this peer's versions has room for a direct message."""
        return self._adapter.fits(message, self.form_key)

    def listens_as(self, channel: str) -> Principal:
        """Who asked for *channel*: each request may carry a token of its own."""
        return self._askers.get(channel, self.principal)

    def may_go_on(self) -> bool:
        """Whether it may still be told what is being resent, and hear the key exchanges that it does."""
        resent = (resending.asked for resending in self.resends if resending.asked is not None)
        known, askers = self._adapter.services.access.known, self._adapter.exchange.askers(self)
        return all(self.bus.allowed(who, "history", channel) for who, channel in resent) and all(
            any(map(known, each)) for each in askers
        )

    @property
    def saturated(self) -> bool:
        """Whether the next request has to wait: also until one of many resends is over."""
        return len(self.resends) >= MAX_STREAMS or super().saturated

    def tick(self, now: int) -> None:  # noqa: ARG002  (tokens and keys have a clock of their own)
        """A second has passed. What a session token or a key gave to this connection ends with it."""
        if self._users and any(self._adapter.user(token) is None for token in self._users):
            self.close(1008, "a session token or API key of this connection is over; log in again")

    @property
    def holding(self) -> int:
        """About how many bytes are kept for the peer, with its messages that wait for their keys."""
        return super().holding + self._adapter.participant.borne(self)

    def give_up(self) -> None:
        """Let go of what is kept for the peer: what waits for its key was taken, and is said as it came."""
        self._adapter.participant.give_up(self)
        super().give_up()

    def goodbye(self) -> None:
        """The gateway stops; what waits for a key waits no more."""
        self._adapter.participant.release()
        super().goodbye()

    def receive_eof(self) -> None:
        """The connection is over."""
        for resending in self.resends:
            resending.end()
        self.resends.clear()
        self._adapter.exchange.forget(self)
        super().receive_eof()

    # What the types of frames do

    def subscribe(self, request: Subscribe) -> None:
        """Hear a stream partition, an inbox or a key exchange from now on; once more changes nothing."""
        stream, partition = request.stream_id, request.stream_partition
        inbox, address = inbox_of(stream), key_exchange_address(stream)
        partitions = self._adapter.partitions(stream)
        if partition >= partitions:
            raise Invalid(out_of_range(partition, partitions))
        if address is not None:
            self._adapter.exchange.listen(self, address, self._admit_to_listen(request, address))
        elif inbox is not None:
            self._open_inbox(request, inbox)
        else:
            self._hear(request, channel_of(stream, partition))
        self._answer(ControlType.SUBSCRIBED, request)

    def unsubscribe(self, request: Unsubscribe) -> None:
        """Hear it no more."""
        stream, partition = request.stream_id, request.stream_partition
        inbox, address = inbox_of(stream), key_exchange_address(stream)
        if address is not None:
            self._adapter.exchange.ignore(self, address)
        elif inbox is not None and stream in self._inboxes.get(inbox.stream_id, ()):
            del self._inboxes[inbox.stream_id][stream]
            self._leave(inbox.stream_id)
        elif (channel := channel_of(stream, partition)) in self._heard:
            self._heard.remove(channel)
            self.bus.regroup(channel)
            self._leave(channel)
        elif stream.lower() == self.address:
            self._adapter.exchange.ignore(self, self.address)
        else:
            raise NotSubscribed(channel)
        self._answer(ControlType.UNSUBSCRIBED, request)

    def publish(self, request: Publish) -> None:
        """Say something; silence means that it was taken."""
        message = request.message
        stream, partition = message.id.stream_id, message.id.stream_partition
        if (address := key_exchange_address(stream)) is not None:
            self.pace(stream)
            check_key_exchange(message, self.bus.clock())
            signer = Principal(f"{NAME}:{message.id.publisher_id.lower()}", self.principal.address)
            self._admit_to_exchange("publish", stream, signer, self.asker(request)[0])
            self._adapter.exchange.send(message, address)
        elif (inbox := inbox_of(stream)) is not None:
            self._say_directly(request, self._channel(inbox.stream_id), inbox)
        elif message.message_type == GROUP_KEY_ROTATE:
            self._rotate(request, self._channel(channel_of(stream, partition)))
        else:
            self._say(request, self._channel(channel_of(stream, partition)))

    def resend(self, request: Resend) -> None:
        """Tell what is stored of a stream partition: Resending, the messages and Resent, or NoResend."""
        stream, partition = request.stream_id, request.stream_partition
        partitions = self._adapter.partitions(stream)
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
            shows = partial(self._adapter.shows, self.message_version)
            found = find(self._adapter.stored, channel, request, shows)
        Resending(self, self._adapter, request, found, asked)

    def unknown(self, frame: ControlFrame) -> None:
        """Refuse what only servers send."""
        raise StreamrError(f"Unknown request type: {int(frame.type)}")

    def _admit_to_exchange(self, verb: str, stream: str, *askers: Principal) -> None:
        """Raise unless one of *askers* may do something here: a key exchange is no channel that rights could name."""
        if not any(map(self._adapter.services.access.known, askers)):
            raise Forbidden(verb, stream)

    def _admit_to_listen(self, request: Subscribe, address: str) -> tuple[Principal, ...]:
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

    def _hear(self, request: Subscribe, channel: str) -> None:
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
            self._adapter.exchange.listen(self, own, self._admit_to_listen(request, own))
        else:
            self._heard.add(channel)
            self.bus.regroup(channel)

    def _listen(self, request: Subscribe, channel: str) -> None:
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

    def _open_inbox(self, request: Subscribe, inbox: Inbox) -> None:
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

    def _say(self, request: Publish, channel: str) -> None:
        # A signature says who wrote the message, and nothing of who brings it: the connection stays what it was.
        self.pace(channel)
        self._identify(request)
        self._adapter.saying.say(self, request, channel, partial(self.refuse, request), self)

    def stays(self, request: Publish) -> bool:
        """Whether *request* shows nobody's token or key that this connection has not shown before."""
        token = request.session_token
        return not token or token in self._users or self._adapter.user(token) is None

    def _rotate(self, request: Publish, channel: str) -> None:
        # A group-key message like those of the key exchange, but for all who read the stream: not bridged, not kept.
        self.pace(channel)
        self._adapter.saying.check(self, request, "publish", channel)
        self._adapter.saying.check_signature(request.message)
        self._adapter.rotate(request.message, channel)

    def _say_directly(self, request: Publish, channel: str, inbox: Inbox) -> None:
        self.pace(channel)
        self._adapter.saying.check(self, request, "direct", channel)
        check_direct(request.message, self.bus.clock(), self._adapter.started)
        peer = self.bus.peers.known(NAME, inbox.peer) if isinstance(inbox.peer, str) else None
        number = inbox.peer if isinstance(inbox.peer, int) else -1 if peer is None else peer.number
        sender = self._adapter.saying.sender(self, request)
        sent = as_sent(request.message, ids_of(request.message), channel, sender, self.control)
        if not self.bus.direct(sent, number):
            raise UnknownChannel(request.message.id.stream_id)

    # Who asks, and how it is answered

    def asker(self, request: Request) -> User:
        """Whose token or key the *request* carries; the connection's own principal without one."""
        self._identify(request)
        return self._adapter.asker((request.session_token, request.api_key), self.principal)

    def charge(self, author: Peer) -> None:
        """Raise `Throttled` where *author*, who signed what this connection carries, says too much."""
        charge(self.bus, self.who, author)

    def _identify(self, request: Request) -> None:
        """Take the connection for the user of the request's session token or key, if it carries one.

        Nothing else does that but a key in the connection's URL. With a second user it is a link, and nobody's.
        """
        for token in (request.session_token, request.api_key):
            if not token or token in self._users or (user := self._adapter.user(token)) is None:
                continue
            if len(self._users) >= MAX_TOKENS:
                raise Invalid(f"not more than {MAX_TOKENS} session tokens and keys on one connection")
            self._users[token] = user
            if (peer := user.peer(self.bus.peers)) is not None:
                self.bus.bind(self, peer)

    @property
    def user(self) -> User | None:
        """Whose session tokens and keys the connection has shown; None where that is nobody, or more than one."""
        return next(iter(self._users.values()), User(self.principal)) if self.identity is not None else None

    @property
    def address(self) -> str | None:
        """The Ethereum address whose session token the connection has shown."""
        return self.who.identity if self.who.protocol == NAME else None

    def _form(self, message: Message, key: str) -> Any:
        return self._adapter.form(message, key)

    def _speak(self, control: int, message: int | None = None) -> None:
        """Use these versions where the peer did not ask for others."""
        self.control = self._asked[0] or control
        self.message_version = self._asked[1] or message or UNNEGOTIATED[self.control]
        self.form_key = FORMS[self.control, self.message_version]

    def _answer(self, kind: ControlType, request: Subscribe | Unsubscribe) -> None:
        where = request.stream_id, request.stream_partition
        answer = Answer(type=kind, stream_id=where[0], stream_partition=where[1], request_id=request.request_id)
        self.send(text_frame(encode(answer, self.control)))

    def refuse(self, frame: ControlFrame, error: RequestError) -> None:
        """Answer *frame* with the *error*; a forged signature counts as input that the protocol has no place for."""
        if isinstance(error, Forged):
            self.offend()
        self.send(self.failure(*refusal(frame, error), frame.request_id))

    def failure(self, text: str, code: str, request_id: str | int) -> bytes:
        """An ErrorResponse, as a frame."""
        return text_frame(encode(Failure(error_message=text, error_code=code, request_id=request_id), self.control))


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
