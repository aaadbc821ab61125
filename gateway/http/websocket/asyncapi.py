"""The messages on `/v1/ws`, as JSON Schemas for `/asyncapi.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import getdoc
from typing import Any, Final

import msgspec

from gateway.adapter import WireMessage
from gateway.core.message import REST

from .messages import KINDS, PATH, Request, type_of

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
OBJECT: Final[Schema] = {"type": "object"}
NULLABLE_TEXT: Final[Schema] = {"type": ["string", "null"]}
ANYTHING: Final[Schema] = {}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
OBJECTS: Final[Schema] = {"type": "array", "items": OBJECT}

PEER: Final = {"number": NUMBER, "protocol": TEXT, "identity": NULLABLE_TEXT, "name": NULLABLE_TEXT}
RECEIPT: Final = {"id": TEXT, "channel": TEXT, "sequence": NUMBER, "timestamp": NUMBER, "undelivered": TEXTS}
MESSAGE: Final = {
    **{"id": TEXT, "channel": TEXT, "timestamp": NUMBER, "sender": OBJECT, "content": ANYTHING},
    **{"inReplyTo": NULLABLE_TEXT, "native": OBJECT, "undelivered": TEXTS},
}
WHERE: Final = {"channel": TEXT, "pattern": TEXT}  # exactly one of them

# What the gateway sends: answers, which repeat `request`, and events; with members, optional ones and a summary.
# fmt: off
ANSWERS: Final[dict[str, tuple[Schema, Schema, str]]] = {
    "subscribed":   ({"sequence": NUMBER}, WHERE, "Where a subscription begins"),
    "unsubscribed": ({}, WHERE, "A subscription ended"),
    "published":    (RECEIPT, {}, "A message is on disk"),
    "delivered":    ({"id": TEXT, "delivered": NUMBER}, {}, "A direct message was delivered to this many connections"),
    "history":      ({"channel": TEXT, "messages": OBJECTS, "next": {"type": ["integer", "null"]}}, {}, "A page"),
    "presence":     ({"channel": TEXT, "peers": OBJECTS, "more": FLAG}, {}, "A part of the peers in a channel"),
    "pong":         ({}, {}, "The gateway is there"),
    "error":        ({"problem": OBJECT}, {}, "A request was refused, as REST would refuse it"),
}
EVENTS: Final[dict[str, tuple[Schema, Schema, str]]] = {
    "welcome":      (PEER | {"version": TEXT}, {}, "The first message: who you are"),
    "message":      (MESSAGE | {"sequence": NUMBER}, {"pattern": TEXT}, "Somebody published"),
    "direct":       (MESSAGE, {}, "Somebody sent a message to you alone"),
    "joined":       (PEER | {"channel": TEXT}, {}, "A peer came to a channel"),
    "left":         (PEER | {"channel": TEXT}, {}, "A peer left a channel"),
    "gap":          ({"after": NUMBER, "before": NUMBER}, WHERE, "Messages between two sequences are no longer kept"),
}
# fmt: on


class RestSocket:
    """REST on its WebSocket, described as adapters describe themselves."""

    name = REST
    title = "REST"
    paths = (PATH,)

    def wire_messages(self) -> Mapping[str, list[WireMessage]]:
        """Return the messages, by path."""
        return {PATH: [*_messages()]}


def _messages() -> Iterator[WireMessage]:
    """Each message in either direction. The schemas of those of clients come from their types (`messages.py`)."""
    for kind in KINDS:
        yield WireMessage(type_of(kind), _received(kind), (getdoc(kind) or "").partition("\n")[0], sent=False)
    for named, table in ((True, ANSWERS), (False, EVENTS)):
        for name, (required, optional, summary) in table.items():
            yield WireMessage(f"{name}.told", _sent(name, required, optional, named), summary, received=False)


def _received(kind: type[Request]) -> Schema:
    _, components = msgspec.json.schema_components((kind,))
    found: Schema = components[kind.__name__]
    return found


def _sent(name: str, required: Schema, optional: Schema, named: bool) -> Schema:
    request = {"request": {"type": ["integer", "string", "null"]}} if named else {}
    members = {"type": {"const": name}, **request, **required}
    return {"type": "object", "properties": {**members, **optional}, "required": list(members)}
