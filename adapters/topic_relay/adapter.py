"""The topic relay's adapter: its connections, the topics of channels, and packets for other protocols' messages."""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import count
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway.adapter import Adapter, ConnectionRequest, OutboundLink, Refusal, WireMessage
from gateway.core.channels import valid_name
from gateway.core.frames import text_frame
from gateway.core.message import Form, Message, Peer, PendingForm
from gateway.core.outbox import MAX_OUTBOX
from gateway.core.principal import Principal
from gateway.core.shared_ids import shared_id
from gateway.storage.record import Fact

from .asyncapi import packet_schemas
from .codec import (
    ID_KEY,
    MAX_PACKET,
    MAX_TOPIC,
    PacketError,
    check_logged,
    decode_logged,
    encode,
    extend,
    fits,
    forward,
    utf16_length,
)
from .link import RelayLink, RelayPeer, link
from .session import NAME, WITH_ID, TopicRelaySession

MAX_OVERHEAD = 512  # bytes; an upper bound of what a packet has beside its content
PREFIX = "topic:"  # of channels whose topic is no valid channel name
SHORTENED_LENGTH = 19  # units kept of a name that is too long; "~" and 10 characters of its digest follow


class TopicRelaySettings(BaseModel):
    """The section `topic_relay` of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    max_outbox: int = Field(
        MAX_OUTBOX, ge=MAX_PACKET, description="Bytes that may wait for a peer that reads too slowly."
    )
    peers: tuple[RelayPeer, ...] = Field(
        (), description="Topic relays elsewhere that the gateway dials, and the channels that it exchanges with them."
    )

    @field_validator("peers")
    @classmethod
    def _check_peers(cls, peers: tuple[RelayPeer, ...]) -> tuple[RelayPeer, ...]:
        if len({peer.url for peer in peers}) < len(peers):
            raise ValueError("the same url twice: name all its channels in one table")
        return peers


class TopicRelayAdapter(Adapter):
    """JSON packets over a WebSocket, as the Koshare Router speaks them."""

    name = NAME
    title = "topic relay"
    settings_model = TopicRelaySettings
    principals = "anonymous|peer"
    paths = ("/relay", "/")
    carries = MappingProxyType(
        {
            "subscribe": "2 Subscribe: an echo with `peers`",
            "unsubscribe": "3 Unsubscribe: silence",
            "publish": "6 Broadcast: silence",
            "delivered": "6 with `src`",
            "direct": "4 Message with `dst`: silence",
            "directDelivered": "4 with `src` and `dst`",
            "presence": "`peers`; 7 Hello for a newcomer",
            "history": None,
            "refused": "an echo with `error`",
            "alive": "1 Echo, 5 Info",
        }
    )
    limits = MappingProxyType(
        {
            "content": f"a packet of {MAX_PACKET:,} UTF-16 units",
            "name": f"{MAX_TOPIC} UTF-16 units; a longer one is shortened",
            "outbox": f"{MAX_OUTBOX:,} bytes",
        }
    )

    def wire_messages(self) -> Mapping[str, list[WireMessage]]:
        """The packet types, on each path."""
        return {path: [*packet_schemas()] for path in self.paths}

    def accept(self, request: ConnectionRequest) -> TopicRelaySession | Refusal:
        """A session for every connection to one of our paths."""
        if request.path not in self.paths:
            return Refusal(404, f"the topic relay is at {' and '.join(self.paths)}")
        return TopicRelaySession(self.bus, request.principal, self.form, self.home.version, self.settings.max_outbox)

    def links(self) -> list[OutboundLink]:
        """The links to the relays that the operator configured."""
        return [link(peer, self._dialled) for peer in self.settings.peers]

    def _dialled(self, principal: Principal, peer: RelayPeer) -> RelayLink:
        return RelayLink(self.bus, principal, peer, self.form, self.settings.max_outbox)

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        """The topic of *channel*: its name if that is a valid topic, else a shortened name with a digest."""
        topic = topic_of(channel)
        if topic is not None and not taken(topic):
            return topic
        return next(topic for topic in (shortened(channel, n) for n in count()) if not taken(topic))

    def channel(self, address: str) -> str | None:
        """The channel of the topic *address*; None if it is too long for one."""
        return channel_of(address) if utf16_length(address) <= MAX_TOPIC else None

    @classmethod
    def may_be_pinned(cls, address: str) -> bool:
        """Any topic."""
        return utf16_length(address) <= MAX_TOPIC

    @classmethod
    def flaw(cls, entry: Message | Fact) -> str | None:
        """A topic that is too long, or a received text that is no packet."""
        if isinstance(entry, Fact):
            address = entry.fields["addresses"].get(NAME) if entry.kind == "channel" else None
            return None if address is None or cls.may_be_pinned(address) else "its topic is too long"
        if entry.protocol != NAME or entry.wire is None:
            return None
        try:
            check_logged(entry.wire)
        except PacketError as error:
            return f"it holds no packet: {error}"
        return None

    def describe(self, address: str) -> dict[str, Any]:
        """The topic."""
        return {"topic": address}

    def names(self, peer: Peer) -> int:
        """Its number."""
        return peer.number

    def add_refs(self, run: Sequence[Message]) -> None:
        """Mark messages whose packet would be too long as undelivered; the others need no references."""
        for message in run:
            if not self._has_room(message):
                message.undelivered += (NAME,)

    def _has_room(self, message: Message) -> bool:
        if len(message.content) <= MAX_PACKET - MAX_OVERHEAD:
            return True
        return fits(message.content.strip()) and fits(
            self._packet(message)
        )  # the first check avoids parsing up to a MiB

    def form(self, message: Message, key: str) -> Form:
        """The frame of a *message* of another protocol, out of the log, or `WITH_ID`; skipped if it does not fit."""
        if key == WITH_ID:
            packet = extend(self._packet(message), {}, **{ID_KEY: shared_id(message)})
            return text_frame(packet) if fits(packet) else PendingForm.skipped()
        if message.protocol == NAME and message.wire is not None:
            return text_frame(forward(decode_logged(message.wire), message.sender.number))
        packet = self._packet(message)
        return text_frame(packet) if fits(packet) else PendingForm.skipped()

    def _packet(self, message: Message) -> bytes:
        topic = self.bus.channels.address(NAME, message.channel)
        assert topic is not None  # a topic always follows from the name
        target = message.target
        return encode(topic, message.content, message.sender.number, None if target is None else target.number)


# Topics and channels map one-to-one by rule: a topic that is a valid channel name is that channel; any other topic, and
# any that begins with PREFIX, is the channel PREFIX + topic, where characters that a channel name must not have are
# escaped as JavaScript's `escape` does (%1F, %uD800; a topic of 30 units stays far below the 255 of a name). Any other
# channel gets a topic with a digest, which only the table of addresses maps back.

_ESCAPED = re.compile("[%@\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPE = re.compile("%(?:u([0-9A-F]{4})|([0-9A-F]{2}))")


def channel_of(topic: str) -> str:
    """The channel of *topic*, which has at most `MAX_TOPIC` units, by rule."""
    if valid_name(topic) and not topic.startswith(PREFIX):
        return topic
    return PREFIX + _ESCAPED.sub(lambda match: _escape(ord(match[0])), topic)


def topic_of(channel: str) -> str | None:
    """The topic whose channel is *channel* by rule; None if there is none."""
    topic = channel
    if channel.startswith(PREFIX):
        topic = _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), channel[len(PREFIX) :])
    return topic if utf16_length(topic) <= MAX_TOPIC and channel_of(topic) == channel else None


def shortened(channel: str, attempt: int) -> str:
    """A topic for *channel*, whose name is no valid topic: its beginning and a base32 digest in lower case.

    The digest is SHA-256 of the name; from the second *attempt* on, of the name, a line feed (which no name holds)
    and the attempt's number.
    """
    text = f"{channel}\n{attempt}" if attempt else channel
    digest = b32encode(sha256(text.encode(errors="surrogatepass")).digest())[:10].decode().lower()
    beginning = channel.encode("utf-16-le", "surrogatepass")[: 2 * SHORTENED_LENGTH].decode("utf-16-le", "ignore")
    return f"{beginning}~{digest}"


def _escape(code: int) -> str:
    return f"%{code:02X}" if code < 256 else f"%u{code:04X}"
