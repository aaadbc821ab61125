"""A connection to a topic relay that the gateway dials: here it is the client, and the other side the server.

A topic is the same channel on both sides. A message that is published here is sent as a Broadcast with its canonical id
in the member `ID_KEY`, and another gateway does the same for links. A message with an id that is known here is a copy,
and goes no further. Nothing is kept while there is no connection: the protocol has no history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import Field, SecretStr

from gateway.adapter import OutboundLink
from gateway.core.bus import Bus
from gateway.core.errors import RequestError, Throttled, Unavailable
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Form, Message, Peer
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.link_channels import PORTS, ChannelSearch, LinkSession, WebSocketPeer

from . import codec
from .codec import ID_KEY, Packet, PacketError, decode, without
from .session import NAME, WITH_ID, error_name, match_packet_id, to_bus_message

LINK_PRINCIPAL: Final = f"{NAME}:peer"  # the principal of links
MAX_TOPICS: Final = 5_000  # that one link subscribes to
MAX_SENDERS: Final = 1_000  # peers of the other side that have numbers here; the others share one
KEEPALIVE_MS: Final = 30_000
MAX_REASON: Final = 100  # characters of an error of the other side that are logged


class RelayPeer(WebSocketPeer):
    """A server of the topic relay's protocol: a genuine one, or another gateway."""

    key: SecretStr | None = Field(
        default=None, max_length=1024, description="An API key of a gateway; it is sent as `?key=`, and shown nowhere."
    )


class RelayLink(LinkSession):
    """The connection to *peer*; *form* makes the packet of a message for it."""

    protocol = NAME
    text = True

    def __init__(
        self, bus: Bus, principal: Principal, peer: RelayPeer, form: Callable[[Message, str], Form], max_outbox: int
    ) -> None:
        super().__init__(bus, principal)
        self.link = True
        self.max_outbox = max_outbox
        self.received = self.sent = 0  # messages
        self.topics: set[str] = set()  # that the other side has confirmed
        self._peer = peer
        self._form = form
        self._senders: dict[int, Peer] = {}
        self._asked: set[str] = set()  # topics
        self._search = ChannelSearch(bus.channels, peer, MAX_TOPICS)
        self._last_keepalive = bus.clock()
        if peer.sends:
            for prefix in {*peer.names, *peer.prefixes}:
                bus.watchers.add(self, prefix)
        if peer.receives:
            self._listen()

    # To the other side

    def deliver(self, message: Message) -> None:
        """Send a *message* of an exchanged channel, unless it does not fit."""
        if self._peer.matches(message.channel):
            self.put(message.form(WITH_ID, self._form))
            self.sent += 1

    def tick(self, now: int) -> None:
        """Subscribe to the topics of new channels, send a packet every `KEEPALIVE_MS`, and end a pause."""
        if self._peer.receives:
            self._listen()
        if now - self._last_keepalive >= KEEPALIVE_MS:
            self._last_keepalive = now
            self.send(text_frame(dumps({"type": codec.ERROR, "topic": "keep-alive"})))
        if self.paused:
            self.go_on()

    def _listen(self) -> None:
        for channel in self._search.next():
            topic = self.bus.channels.address(NAME, channel)
            assert topic is not None  # it always follows from the name
            self._asked.add(topic)
            self.send(text_frame(dumps({"type": codec.SUBSCRIBE, "topic": topic, ID_KEY: True})))

    # From the other side

    def take(self, data: bytes) -> None:
        """Publish a Broadcast, and note answers; ignore everything else."""
        try:
            packet = decode(data)
            if packet.kind == codec.BROADCAST:
                self._publish(packet)
            elif "error" in packet.fields:
                error = packet.fields["error"]
                self.record_refusal("by the other side", error[:MAX_REASON] if type(error) is str else "")
            elif packet.kind == codec.SUBSCRIBE and packet.topic in self._asked:
                self.topics.add(packet.topic)
        except PacketError as refused:
            self.record_malformed()
            self.record_refusal("malformed", str(refused))
        except (Throttled, Unavailable):  # nothing is lost
            raise
        except RequestError as refused:
            self.record_refusal(error_name(refused), str(refused))

    def _publish(self, packet: Packet) -> None:
        if packet.topic not in self._asked:  # one that was not asked for could create a channel here
            return
        channel = self.bus.channels.channel(NAME, packet.topic)
        self.check("publish", channel)
        found = match_packet_id(packet, channel, self.bus)
        if found.is_copy:
            return
        message = to_bus_message(
            decode(without(packet.text, ("src",))), channel, self._sender(packet.fields.get("src"))
        )
        found.name_message(message)
        self.bus.publish(message, self)
        self.received += 1

    def _sender(self, source: object) -> Peer:
        """Return the peer here for the other side's peer *source*; it has a number as long as this connection lasts."""
        if type(source) is not int:
            return self.peer
        if source not in self._senders:
            if len(self._senders) >= MAX_SENDERS:
                return self.peer
            self._senders[source] = self.bus.peers.connection(NAME)
        return self._senders[source]


def link(peer: RelayPeer, open: Callable[[Principal, RelayPeer], RelayLink]) -> OutboundLink:
    """Return the link to *peer*; *open* makes the session of a connection."""
    parts = urlsplit(peer.url)
    assert parts.hostname is not None  # it was checked
    query = (
        parts.query if peer.key is None else urlencode([*parse_qsl(parts.query), ("key", peer.key.get_secret_value())])
    )
    path = (parts.path or "/") + (f"?{query}" if query else "")

    def dialled() -> RelayLink:
        return open(Principal(LINK_PRINCIPAL, parts.hostname or ""), peer)

    port = parts.port or PORTS[parts.scheme]
    return OutboundLink(peer.url, parts.hostname, port, dialled, _report, parts.scheme == "wss", path=path)


def _report(session: Session) -> dict[str, Any]:
    assert isinstance(session, RelayLink)
    return {"topics": len(session.topics), "received": session.received, "sent": session.sent}
