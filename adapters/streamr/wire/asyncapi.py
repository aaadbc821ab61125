"""Describes the messages on Streamr's WebSockets for `/asyncapi.json`, from the tables of the codecs.

The schemas describe what the gateway writes and the libraries send. The codecs also read older forms, and forms that
only a specification has; the schemas omit those (see `control.VARIANTS`, and `FLAT_30` and `SHORT_32` in
`message_layouts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gateway.adapter import WireMessage

from .control import CONTROL, ControlType
from .message_layouts import LAYOUTS
from .network import ARRAYS, OBJECTS, S2_VERSION, WRAPPED_VERSION, NetworkType
from .tracker import TRACKER, VERSIONS, TrackerType

Schema = dict[str, Any]

# fmt: off
TEXT: Final[Schema]   = {"type": "string"}
NONEMPTY_TEXT: Final[Schema]   = {"type": "string", "minLength": 1}
OPTIONAL_TEXT: Final[Schema]  = {"type": ["string", "null"]}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
OBJECT: Final[Schema] = {"type": "object"}
NODES: Final[Schema]  = {"type": "array", "items": TEXT}
REF: Final[Schema]    = {"type": "array", "items": [NUMBER, {"type": ["integer", "null"], "minimum": 0}], "minItems": 2}
ID: Final[Schema]     = {"type": "array", "items": [NONEMPTY_TEXT, NUMBER, NUMBER, NUMBER, TEXT, TEXT], "minItems": 6}

# The fields of a stream message.
ROW: Final[dict[str, Schema]] = {
    "msgId":          ID,
    "prevMsgRef":     {"anyOf": [REF, {"type": "null"}]},
    "messageType":    {"enum": [*range(27, 33)]},
    "contentType":    {"const": 0},
    "encryptionType": {"enum": [0, 1, 2, 3]},
    "groupKeyId":     OPTIONAL_TEXT,
    "content":        NONEMPTY_TEXT,
    "newGroupKey":    OPTIONAL_TEXT,
    "signatureType":  {"enum": [0, 1, 2]},
    "signature":      OPTIONAL_TEXT,
}
MESSAGE: Final[Schema] = {
    "anyOf": [
        {
            "type": "array",
            "title": f"version {version}",
            "items": [{"const": version, "title": "version"}, *({"title": name, **ROW[name]} for name in names[1:])],
            "minItems": len(names),
        }
        for version, names in LAYOUTS.items()
    ]
}
# The other fields of the tables.
FIELDS: Final[dict[str, Schema]] = {
    "requestId":                     TEXT,
    "subId":                         {"type": ["string", "integer"]},
    "sessionToken":                  OPTIONAL_TEXT,
    "streamId":                      NONEMPTY_TEXT,
    "streamPartition":               NUMBER,
    "streamMessage":                 MESSAGE,
    "numberLast":                    NUMBER,
    "fromMsgRef":                    REF,
    "toMsgRef":                      REF,
    "publisherId":                   OPTIONAL_TEXT,
    "msgChainId":                    OPTIONAL_TEXT,
    "errorMessage":                  TEXT,
    "errorCode":                     TEXT,
    "status":                        {"type": ["object", "string"]},
    "nodeAddresses":                 NODES,
    "controlLayerPayload":           {"type": "array"},
    "serializedControlLayerPayload": TEXT,
    "counter":                       NUMBER,
    "originator":                    OBJECT,
    "targetNode":                    NONEMPTY_TEXT,
    "subType":                       NONEMPTY_TEXT,
    "data":                          OBJECT,
}
# fmt: on

RESPONSES: Final = frozenset([*ControlType][: ControlType.PUBLISH])  # types that only the gateway sends
SENT_BY_NODES: Final = frozenset({NetworkType.STATUS, NetworkType.INSTRUCTION, NetworkType.FIND_STORAGE_NODES})
SENT_BY_TRACKERS: Final = frozenset({TrackerType.INSTRUCTION, TrackerType.STORAGE_NODES_RESPONSE, TrackerType.ERROR})


def control() -> Iterator[WireMessage]:
    """The frames of the control layer, in both versions."""
    for version, layouts in CONTROL.items():
        for kind, names in layouts.items():
            sent = kind in RESPONSES
            row = _row({"const": version}, kind, names)
            yield WireMessage(f"control{version}.{kind.name}", row, _title(kind), sent, not sent)


def network() -> Iterator[WireMessage]:
    """The messages of the network layer, as arrays and as objects."""
    for kind in NetworkType:
        said = _title(kind), kind not in SENT_BY_NODES
        array = _row(TEXT | {"examples": [S2_VERSION]}, kind, ARRAYS[kind], {"title": "source", **TEXT})
        yield WireMessage(f"array.{kind.name}", array, *said)
        payload = OBJECT | {"properties": {name: FIELDS[name] for name in OBJECTS[kind]}, "required": [*OBJECTS[kind]]}
        members = {
            "version": TEXT | {"examples": [f"{WRAPPED_VERSION}.0.0"]},
            "code": {"const": int(kind)},
            "payload": payload,
        }
        yield WireMessage(f"object.{kind.name}", OBJECT | {"properties": members, "required": [*members]}, *said)


def tracker() -> Iterator[WireMessage]:
    """The messages of the tracker protocol, in both versions."""
    for version in VERSIONS:
        for kind, names in TRACKER.items():
            received = kind not in SENT_BY_TRACKERS
            sent = not received or kind is TrackerType.RELAY
            row = _row({"const": version}, kind, names)
            yield WireMessage(f"tracker{version}.{kind.name}", row, _title(kind), sent, received)


def _row(version: Schema, kind: int, names: tuple[str, ...], *between: Schema) -> Schema:
    head = [{"title": "version", **version}, {"title": "type", "const": int(kind)}, *between]
    items = [*head, *({"title": name, **FIELDS[name]} for name in names)]
    return {"type": "array", "items": items, "minItems": len(items)}


def _title(kind: ControlType | NetworkType | TrackerType) -> str:
    return kind.name.capitalize().replace("_", " ")
