"""A peer of the topic relay: what each type of packet does on the bus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Self

from gateway.core.bus import Bus
from gateway.core.errors import Forbidden, RequestError, Throttled, TooManyChannels, UnknownChannel
from gateway.core.frames import header, text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Form, Message, Peer
from gateway.core.outbox import MAX_OUTBOX
from gateway.core.presence import JOIN_NOTICES_PER_REQUEST
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.shared_ids import NO_SHARED_ID, SharedIdMatch, match_shared_id
from gateway.core.subscriber import Subscriber

from . import codec
from .codec import Broadcast, Packet, PacketError, decode, extend, forward, shape_of, src_tail

NAME = "topic_relay"
WITH_ID = f"{NAME}:id"  # the form of a message with its canonical id, for other gateways


class NoDestination(RequestError):
    """A Message whose `dst` is not a number."""


class UnsupportedMessageType(RequestError):
    """Hello, which only the gateway sends, or an unknown type."""


# The names of errors that the reference does not have; it calls the others by the names of the classes here.
ERRORS: dict[type[RequestError], str] = {
    Forbidden: "PermissionDenied",
    Throttled: "TooManyRequests",
    UnknownChannel: "UnknownTopic",
    TooManyChannels: "TooManyTopics",
}


class TopicRelaySession(Session):
    """A connected peer. *form* makes the packet of another protocol's message, *version* is the gateway's."""

    protocol = NAME
    text = True

    def __init__(
        self,
        bus: Bus,
        principal: Principal,
        form: Callable[[Message, str], Form],
        version: str,
        max_outbox: int = MAX_OUTBOX,
    ) -> None:
        super().__init__(bus, principal)
        self.max_outbox = max_outbox
        self.version = version
        self._form = form
        self._key = NAME  # of the form of messages that it gets

    def dialect(self, channel: str) -> str:  # noqa: ARG002  # the same in all
        """The form that it gets."""
        return self._key

    def handle(self, data: bytes) -> None:
        """Act on one packet; a malformed one does not end the connection, but many do (`record_malformed`)."""
        try:
            packet = decode(data)
        except PacketError as refused:
            self.send(text_frame(refused.reply()))
            self.record_malformed()
            self.record_refusal("malformed", str(refused))
            return
        self._dispatch(packet)

    def receive_all(self, messages: Sequence[bytes]) -> None:
        """Act on packets that arrived together; consecutive broadcasts of one shape are published as a run."""
        at = 0
        while at < len(messages):
            data = messages[at]
            shape = shape_of(data) if self.ready else None
            if shape is not None and shape.kind == codec.BROADCAST and (run := shape.read_run(messages, at)):
                self.broadcast_all(shape.topic, run)
                at += len(run)
                continue
            if shape is not None and (packet := shape.packet(data)) is not None:
                self._dispatch(packet)
            else:
                self.receive_data(data)
            at += 1

    def may_log(self, data: bytes) -> bool:
        """Whether it is a message to others, or cannot be read."""
        try:
            return decode(data).kind not in READS
        except PacketError:
            return True

    def _dispatch(self, packet: Packet) -> None:
        try:
            verb = VERBS.get(packet.kind)
            if verb is None:
                raise UnsupportedMessageType
            verb(self, packet)
        except RequestError as error:
            self.answer(packet, error=error_name(error))
            self.record_refusal(error_name(error), str(error))

    def deliver(self, message: Message) -> None:
        """Queue the packet; every subscriber of a dialect gets the same frame."""
        self.put(message.forms.get(self._key) or message.form(self._key, self._form))

    @classmethod
    def deliver_all(cls, run: Sequence[Message], sessions: Sequence[Self], origins: Sequence[Subscriber | None]) -> int:
        """As `deliver`, for many sessions."""
        frames: list[bytes] = []
        key = sessions[0]._key
        for message in run:  # usually one, for which comprehensions would take longer
            form = message.forms.get(key) or message.form(key, sessions[0]._form)
            if isinstance(form, bytes):
                frames.append(form)
        if len(frames) < len(run):  # what does not fit comes from elsewhere
            origins = (None,) * len(frames)
        return cls.fan_out(frames, sessions, origins) if frames else 0

    def fits(self, message: Message) -> bool:
        """Whether a direct *message* fits in a packet."""
        return isinstance(message.form(NAME, self._form), bytes)

    def peer_joined(self, channel: str, peer: Peer) -> None:
        """Send a Hello for *peer* (specification, "Subscribe")."""
        self.put(hello_frame(self.bus.channels.address(NAME, channel) or channel, peer.number))

    # Packet types

    def ignore(self, packet: Packet) -> None:
        """Error: ignored; the reference client sends it as a keepalive."""

    def echo_back(self, packet: Packet) -> None:
        """Echo: the packet, unchanged."""
        self.send(text_frame(packet.text))

    def subscribe(self, packet: Packet) -> None:
        """Subscribe: an echo with the other subscribers, who get their Hello first.

        With the member `ID_KEY` it is the link of another gateway, which recognises copies by their canonical ids.
        """
        channel = self.authorized_channel("subscribe", packet.topic)
        peers = self.others(self.bus.subscribe(self, channel, lists=True))
        if codec.ID_KEY in packet.fields and self._key == NAME:
            self._key = WITH_ID
            for each in self.channels:
                self.bus.dialect_changed(each)
        self.answer(packet, peers=peers)

    def unsubscribe(self, packet: Packet) -> None:
        """Unsubscribe: no answer."""
        self.stop_listening(self.bus.channels.channel(NAME, packet.topic))

    def message(self, packet: Packet) -> None:
        """Message: to one peer in the topic; no answer, whether that peer is subscribed or not."""
        if packet.dst is None:
            raise NoDestination
        channel = self.authorized_channel("direct", packet.topic)
        self.bus.send_direct(to_bus_message(packet, channel, self.who), packet.dst)

    def info(self, packet: Packet) -> None:
        """Info: an echo with the subscribers and the names of the channel in other protocols."""
        channel = self.authorized_channel("subscribe", packet.topic)
        peers = self.others(self.bus.peers_in(channel, self))
        self.bus.charge(self.network, len(peers) / JOIN_NOTICES_PER_REQUEST)
        info = {"channel": channel} | self.bus.describe(channel) | {"version": self.version}
        self.answer(packet, peers=peers, info=info)

    def broadcast(self, packet: Packet) -> None:
        """Broadcast: to all other subscribers of the topic, unless it is a copy; no answer."""
        channel = self.authorized_channel("publish", packet.topic)
        found = match_packet_id(packet, channel, self.bus)
        if not found.is_copy:
            message = to_bus_message(packet, channel, self.who)
            found.name_message(message)
            self.bus.publish(message, self)

    def broadcast_all(self, topic: str, broadcasts: Sequence[Broadcast]) -> None:
        """Publish broadcasts to one topic as a run; from the first that exceeds the rate limit on, they are refused."""
        run: list[Message] = []
        try:
            channel, sender = self.authorized_channel("publish", topic), self.who
            end = src_tail(sender.number)
            for text, content, parent in broadcasts:
                if run:
                    self.pace(channel)
                forwarded = text[:-1] + end
                forms: dict[str, Form] = {NAME: header(len(forwarded)) + forwarded}
                run.append(Message(channel, sender, NAME, content, text, parent, forms))
        except RequestError as error:
            self.refuse(broadcasts[len(run) :], error)
        try:
            if len(run) == 1:
                self.bus.publish_alone(run[0], self, partial(self.refuse, broadcasts[:1]))
            elif run:
                self.bus.publish_run(run, self)
        except RequestError as error:
            self.refuse(broadcasts[: len(run)], error)

    # Helpers

    def authorized_channel(self, verb: str, topic: str) -> str:
        """The channel of *topic*; raises `Forbidden` or `Throttled` unless the peer may *verb* there now."""
        channel = self.bus.channels.channel(NAME, topic)
        self.check(verb, channel)
        return channel

    def others(self, peers: list[Peer]) -> list[int]:
        """The numbers of *peers* without this one, which may have another subscribed connection."""
        return [peer.number for peer in peers if peer.number != self.who.number]

    def refuse(self, broadcasts: Sequence[Broadcast], error: RequestError) -> None:
        """Echo each broadcast with the reference's name for *error*."""
        for text, *_ in broadcasts:
            self.answer(decode(text), error=error_name(error))
            self.record_refusal(error_name(error), str(error))

    def answer(self, packet: Packet, **added: Any) -> None:
        """Echo the packet with the *added* members."""
        self.send(text_frame(extend(packet.text, packet.fields, **added)))


READS = (codec.ERROR, codec.ECHO, codec.SUBSCRIBE, codec.UNSUBSCRIBE, codec.INFO)  # types that log nothing

VERBS: dict[float, Callable[[TopicRelaySession, Packet], None]] = {
    codec.ERROR: TopicRelaySession.ignore,
    codec.ECHO: TopicRelaySession.echo_back,
    codec.SUBSCRIBE: TopicRelaySession.subscribe,
    codec.UNSUBSCRIBE: TopicRelaySession.unsubscribe,
    codec.MESSAGE: TopicRelaySession.message,
    codec.INFO: TopicRelaySession.info,
    codec.BROADCAST: TopicRelaySession.broadcast,
}


def error_name(error: RequestError) -> str:
    """The reference's name for *error*."""
    return ERRORS.get(type(error), type(error).__name__)


def to_bus_message(packet: Packet, channel: str, sender: Peer) -> Message:
    """The bus's message for *packet*, with the form in which other peers of the topic relay get it."""
    form = text_frame(forward(packet, sender.number))
    return Message(channel, sender, NAME, packet.content, packet.text, packet.parent, {NAME: form})


def match_packet_id(packet: Packet, channel: str, bus: Bus) -> SharedIdMatch:
    """Compare *packet* with known messages by the id that another gateway gave it, if it has one."""
    return NO_SHARED_ID if packet.id is None else match_shared_id(bus, packet.id, NAME, channel, packet.content)


@lru_cache(maxsize=64)  # a newcomer is announced to every subscriber of the topic
def hello_frame(topic: str, src: int) -> bytes:
    """The frame of a Hello for *src*."""
    return text_frame(dumps({"type": codec.HELLO, "topic": topic, "src": src}))
