"""Messages, peers and channels, as the gateway describes them, with types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer on any protocol. *identity* is what the peer has proved to be; None for an anonymous peer."""

    number: int
    protocol: str
    identity: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Read a peer, or the sender of a message."""
        number = value["peer"] if "peer" in value else value["number"]
        return cls(number, value["protocol"], value.get("identity"), value.get("name"))


@dataclass(frozen=True, slots=True)
class Message:
    """A message. A direct message has no *sequence*.

    *timestamp* is in milliseconds since 1970, by the author's clock, or by the gateway's if the author gave none.

    *native* has its ids in the protocols, *undelivered* the protocols that it did not fit. *raw* is the message as the
    gateway showed it, and *json* its text, which only a subscription has.
    """

    id: str
    sequence: int | None
    channel: str
    timestamp: int
    sender: Peer
    content: Any
    in_reply_to: str | None = None
    native: Mapping[str, Any] = field(default_factory=dict)
    undelivered: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    json: str | None = field(default=None, repr=False, compare=False)

    @property
    def direct(self) -> bool:
        """Whether the message came to this peer alone."""
        return self.sequence is None

    @classmethod
    def of(cls, value: Mapping[str, Any], json: str | None = None) -> Self:
        """Read a message."""
        return cls(
            id=value["id"],
            sequence=value.get("sequence"),
            channel=value["channel"],
            timestamp=value["timestamp"],
            sender=Peer.of(value["sender"]),
            content=value["content"],
            in_reply_to=value.get("inReplyTo"),
            native=value.get("native") or {},
            undelivered=tuple(value.get("undelivered") or ()),
            raw=value,
            json=json,
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message was published, and is on disk. *timestamp* is in milliseconds since 1970."""

    id: str
    channel: str
    sequence: int
    timestamp: int
    undelivered: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Read the gateway's answer."""
        undelivered = tuple(value.get("undelivered") or ())
        return cls(value["id"], value["channel"], value["sequence"], value["timestamp"], undelivered, value)


@dataclass(frozen=True, slots=True)
class DirectReceipt:
    """A direct message was handed to *delivered* connections of its peer."""

    id: str
    delivered: int
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Read the gateway's answer."""
        return cls(value["id"], value["delivered"], value)


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel: how many listen, and the sequence of its last message. *raw* also has its address in each protocol."""

    name: str
    members: int
    sequence: int
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """Read a channel."""
        return cls(value["name"], value["members"], value["sequence"] or 0, value)
