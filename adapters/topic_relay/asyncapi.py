"""The topic relay's packets, as JSON Schemas for `/asyncapi.json`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from gateway.adapter import WireMessage

from . import codec
from .codec import MAX_TOPIC


class PacketType(NamedTuple):
    """A packet type: its name, and its fields beside `type` and `topic` in each direction; None if never sent so."""

    name: str
    sent: tuple[str, ...] | None  # by the gateway
    received: tuple[str, ...] | None


NUMBER: Final = {"type": "integer"}
FIELDS: Final[dict[str, dict[str, Any]]] = {
    "src": NUMBER,
    "dst": NUMBER,
    "peers": {"type": "array", "items": NUMBER},
    "error": {"type": "string"},
}
# fmt: off
PACKET_TYPES: Final[dict[int, PacketType]] = {
    codec.ECHO:        PacketType("Echo",        (),             ()),
    codec.SUBSCRIBE:   PacketType("Subscribe",   ("peers",),     ()),
    codec.UNSUBSCRIBE: PacketType("Unsubscribe", None,           ()),
    codec.MESSAGE:     PacketType("Message",     ("src", "dst"), ("dst",)),
    codec.INFO:        PacketType("Info",        ("peers",),     ()),
    codec.BROADCAST:   PacketType("Broadcast",   ("src",),       ()),
    codec.HELLO:       PacketType("Hello",       ("src",),       None),
}
# fmt: on


def packet_schemas() -> Iterator[WireMessage]:
    """Each type as peers send it and as the gateway does, and the echo of a refused packet with its error."""
    for number, kind in PACKET_TYPES.items():
        if kind.received is not None:
            yield WireMessage(kind.name, _packet({"const": number}, kind.received), kind.name, sent=False)
        if kind.sent is not None:
            name = f"{kind.name}.told"
            yield WireMessage(
                name, _packet({"const": number}, kind.sent), f"{kind.name}, as others hear it", received=False
            )
    yield WireMessage("Refused", _packet({}, ("error",)), "A packet that was refused, echoed", received=False)


def _packet(kind: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    properties = {"type": kind, "topic": {"type": "string", "maxLength": MAX_TOPIC}}
    properties |= {name: FIELDS[name] for name in names}
    return {"type": "object", "properties": properties, "required": ["type", "topic", *names]}
