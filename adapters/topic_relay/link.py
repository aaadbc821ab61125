"""A connection to a topic relay that the gateway dials: here it is the client, and the other side the server.

A topic is the same channel on both sides. What is published here goes there as a Broadcast with the canonical id of its
message in the member `ID_KEY`, and another gateway does the same for links. What comes with an id that is known here is
a copy, and goes no further. Nothing is kept while there is no connection: the protocol has no history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.adapter import OutboundLink
from gateway.core.bus import Bus
from gateway.core.errors import RequestError
from gateway.core.frames import text_frame
from gateway.core.jsontext import dumps
from gateway.core.message import Form, Message, Peer
from gateway.core.principal import Principal
from gateway.core.session import Session

from . import codec
from .codec import ID_KEY, Packet, PacketError, decode, without
from .peers import PORTS, RelayPeer
from .session import NAME, WITH_ID, chosen_id, error_name, is_copy, to_bus_message

PEER: Final = f"{NAME}:peer"  # the principal of links
MAX_TOPICS: Final = 5_000  # that one link subscribes to
MAX_SENDERS: Final = 1_000  # peers of the other side that have numbers here; the others share one
SCAN: Final = 1_000  # names of channels that are looked through in a second
KEEPALIVE_MS: Final = 30_000


class RelayLink(Session):
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
        self._asked: set[str] = set()  # topics
        self._peer = peer
        self._form = form
        self._senders: dict[int, Peer] = {}
        self._scanned = ""
        self._last_keepalive = bus.clock()
        if peer.sends:
            for prefix in {*peer.names, *peer.prefixes}:
                bus.watchers.add(self, prefix)
        if peer.receives:
            for channel in peer.names:
                self._listen(channel)
            self._scan()

    # To the other side

    def deliver(self, message: Message) -> None:
        """Send a *message* of an exchanged channel, unless it does not fit."""
        if self._peer.matches(message.channel):
            self.put(message.form(WITH_ID, self._form))
            self.sent += 1

    def tick(self, now: int) -> None:
        """Subscribe to topics of channels that are new, and say something now and then."""
        if self._peer.receives:
            self._scan()
        if now - self._last_keepalive >= KEEPALIVE_MS:
            self._last_keepalive = now
            self.send(text_frame(dumps({"type": codec.ERROR, "topic": "keep-alive"})))

    def _scan(self) -> None:
        """Look through the next channels for those that match a pattern, in turns over all."""
        if not self._peer.prefixes:
            return
        names = self.bus.channels.listed(self._scanned, SCAN)
        self._scanned = names[-1] if len(names) == SCAN else ""
        for channel in filter(self._peer.matches, names):
            self._listen(channel)

    def _listen(self, channel: str) -> None:
        topic = self.bus.channels.address(NAME, channel)
        if topic is None or topic in self._asked or len(self._asked) >= MAX_TOPICS:
            return
        self._asked.add(topic)
        self.send(text_frame(dumps({"type": codec.SUBSCRIBE, "topic": topic, ID_KEY: True})))

    # From the other side

    def handle(self, data: bytes) -> None:
        """Publish a Broadcast; anything else is an answer, or of no interest here."""
        try:
            packet = decode(data)
            if packet.kind == codec.BROADCAST:
                self._publish(packet)
            elif "error" in packet.fields:
                self.record_refusal("by the other side", str(packet.fields["error"]))
            elif packet.kind == codec.SUBSCRIBE:
                self.topics.add(packet.topic)
        except PacketError as error:
            self.record_refusal("malformed", str(error))
        except RequestError as error:
            self.record_refusal(error_name(error), str(error))

    def _publish(self, packet: Packet) -> None:
        channel = self.bus.channels.channel(NAME, packet.topic)
        if not self._peer.receives or not self._peer.matches(channel):
            return
        self.check("publish", channel)
        if is_copy(packet, self.bus):
            return
        message = to_bus_message(
            decode(without(packet.text, ("src",))), channel, self._sender(packet.fields.get("src"))
        )
        message.id = chosen_id(packet)
        self.bus.publish(message, self)
        self.received += 1

    def _sender(self, source: object) -> Peer:
        """The peer that the other side calls *source*; it has a number here as long as this connection lasts."""
        if type(source) is not int:
            return self.peer
        if source not in self._senders:
            if len(self._senders) >= MAX_SENDERS:
                return self.peer
            self._senders[source] = self.bus.peers.connection(NAME)
        return self._senders[source]


def link(peer: RelayPeer, open: Callable[[Principal, RelayPeer], RelayLink]) -> OutboundLink:
    """The link to *peer*; *open* makes the session of a connection."""
    parts = urlsplit(peer.url)
    assert parts.hostname is not None  # it was checked
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def dialled() -> RelayLink:
        return open(Principal(PEER, parts.hostname or ""), peer)

    port = parts.port or PORTS[parts.scheme]
    return OutboundLink(peer.url, parts.hostname, port, dialled, _report, parts.scheme == "wss", path=path)


def _report(session: Session) -> dict[str, Any]:
    assert isinstance(session, RelayLink)
    return {"topics": len(session.topics), "received": session.received, "sent": session.sent}
