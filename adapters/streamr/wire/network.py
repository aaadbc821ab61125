"""Reads and writes messages of the network layer, in S2's array form and in the objects that real nodes sent.

S2 writes `[version, type, source, ...]`. Nodes wrote `{"version", "code", "payload"}`: from version 5 on with S2's
numbers, and a wrapped control message as a text; version 4.4.3 with numbers of its own and without a wrapper.
Whatever the bytes, `decode_network` ends in a message or a `StreamrError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from gateway.core import jsontext

from . import checks
from .checks import UNDEFINED
from .codec import element_text
from .errors import StreamrError
from .tracker import MAX_VALUES, node_list

S2_VERSION: Final = "4.4.3"
WRAPPED_VERSION: Final = 5  # the first in which objects have S2's numbers
_VERSION: Final = re.compile(r"([0-9]{1,4})\.[0-9]{1,4}\.[0-9]{1,4}")


class NetworkType(IntEnum):
    """The types of the network layer (S2, Network Layer)."""

    STATUS = 0
    INSTRUCTION = 1
    FIND_STORAGE_NODES = 2
    STORAGE_NODES = 3
    WRAPPER = 4


# fmt: off
# What follows [version, type, source: the fields of each message. S2's example of a StorageNodesMessage has the type of
# an InstructionMessage; both have the same fields.
ARRAYS: Final[dict[NetworkType, tuple[str, ...]]] = {
    NetworkType.STATUS:             ("status",),
    NetworkType.INSTRUCTION:        ("streamId", "nodeAddresses"),
    NetworkType.FIND_STORAGE_NODES: ("streamId",),
    NetworkType.STORAGE_NODES:      ("streamId", "nodeAddresses"),
    NetworkType.WRAPPER:            ("controlLayerPayload",),
}
# The members of the payload in the objects of nodes; a status is all of it.
OBJECTS: Final[dict[NetworkType, tuple[str, ...]]] = {
    NetworkType.STATUS:             (),
    NetworkType.INSTRUCTION:        ("streamId", "streamPartition", "nodeAddresses"),
    NetworkType.FIND_STORAGE_NODES: ("streamId", "streamPartition"),
    NetworkType.STORAGE_NODES:      ("streamId", "streamPartition", "nodeAddresses"),
    NetworkType.WRAPPER:            ("serializedControlLayerPayload",),
}
# The codes of objects before version 5.
OLD_CODES: Final[dict[int, NetworkType]] = {
    0:  NetworkType.STATUS,
    5:  NetworkType.INSTRUCTION,
    13: NetworkType.FIND_STORAGE_NODES,
    14: NetworkType.STORAGE_NODES,
}
# Codes before version 5 that were wrapped later, and are not supported; the names are those of the nodes.
UNSUPPORTED_CODES: Final[dict[int, str]] = {
    1:  "DATA",
    2:  "SUBSCRIBE",
    3:  "UNSUBSCRIBE",
    4:  "PUBLISH",
    6:  "RESEND_LAST",
    7:  "RESEND_FROM",
    8:  "RESEND_RANGE",
    9:  "RESEND_RESPONSE_RESENDING",
    10: "RESEND_RESPONSE_RESENT",
    11: "RESEND_RESPONSE_NO_RESEND",
    12: "UNICAST",
}
CODES: Final[dict[int, NetworkType]] = {int(kind): kind for kind in NetworkType}
# fmt: on
_WRAPPER_REQUIRED: Final = (
    f"a control message comes in a wrapper, as an array or in version {WRAPPED_VERSION}.0.0 or later"
)


def _control(name: str, value: Any) -> bytes:
    """The text of a control message, which is written as an array or as its text."""
    if type(value) is list:
        return jsontext.dumps(value)
    return checks.nonempty(name, value).encode(errors="replace")


def _status(name: str, value: Any) -> Any:
    # S2 says that it is a string; nodes sent objects.
    return value if type(value) is dict else checks.text(name, value)


# The attribute of a message that each field becomes, and the check of its value.
# fmt: off
FIELDS: Final[dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "status":                        ("status", _status),
    "streamId":                      ("stream_id", checks.nonempty),
    "streamPartition":               ("stream_partition", checks.integer),
    "nodeAddresses":                 ("nodes", node_list),
    "controlLayerPayload":           ("control", _control),
    "serializedControlLayerPayload": ("control", _control),
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMessage:
    """One message of the network layer. *as_object* says which of the two forms it has, or is to be written in."""

    type: NetworkType
    source: str = ""
    status: Any = ""
    stream_id: str = ""
    stream_partition: int = 0
    nodes: tuple[str, ...] = ()
    control: bytes = b""
    version: str = S2_VERSION
    as_object: bool = False


def parse_network(data: bytes | str) -> Any:
    """Read the JSON value that a message has to be; anything else raises a `StreamrError`."""
    try:
        return jsontext.loads(data, max_values=MAX_VALUES)
    except ValueError as error:
        raise StreamrError(f"Invalid JSON: {error}") from None


def version_and_form(value: Any) -> tuple[str, bool]:
    """The version of *value*, and whether it has the object form; a default version if it has no readable one."""
    if type(value) is dict:
        return _version_or(value.get("version"), f"{WRAPPED_VERSION}.0.0"), True
    return _version_or(value[0] if type(value) is list and value else None, S2_VERSION), False


def decode_network(data: bytes | str) -> NetworkMessage:
    """Read one message; anything else raises a `StreamrError`."""
    return decode_value(parse_network(data), data)


def decode_value(value: Any, data: bytes | str) -> NetworkMessage:
    """Read one message that was parsed from the text *data*; anything else raises a `StreamrError`."""
    if type(value) is dict:
        return _decode_object(value)
    row = value if type(value) is list else []
    message = _decode_array(row)
    if message.type is NetworkType.WRAPPER and type(row[3]) is list:  # verbatim, if its text can be located
        wire = data if isinstance(data, bytes) else data.encode()
        return replace(message, control=element_text(row, 3, wire) or message.control)
    return message


def encode_network(message: NetworkMessage) -> bytes:
    """Write *message* in its form and version."""
    if not message.as_object:
        head = jsontext.dumps([message.version, int(message.type), message.source])[:-1]
        values = (_array_text(name, message) for name in ARRAYS[message.type])
        return b",".join([head, *values]) + b"]"
    codes = _codes(message.version)
    code = next(number for number, kind in codes.items() if kind is message.type)
    payload = {name: _object_value(name, message) for name in OBJECTS[message.type]} or message.status
    return jsontext.dumps({"version": message.version, "code": code, "payload": payload})


def has_wrapper(version: str, *, as_object: bool) -> bool:
    """Whether this version and form can wrap control messages."""
    return not as_object or NetworkType.WRAPPER in _codes(version).values()


def _array_text(name: str, message: NetworkMessage) -> bytes:
    """The JSON text of a field in an array: a control message is a text already."""
    return message.control if name == "controlLayerPayload" else jsontext.dumps(getattr(message, FIELDS[name][0]))


def _object_value(name: str, message: NetworkMessage) -> Any:
    """The value of a field in an object: a control message is a string."""
    value = getattr(message, FIELDS[name][0])
    return value.decode() if isinstance(value, bytes) else value


def _decode_array(row: list[Any]) -> NetworkMessage:
    version, number, source = checks.padded(row, 3)
    _major_version(version)
    kind = _kind(number, CODES)
    names = ARRAYS[kind]
    fields = dict(zip(names, checks.padded(row[3:], len(names)), strict=True))
    return NetworkMessage(type=kind, version=version, source=checks.text("source", source), **_values(fields))


def _decode_object(row: dict[str, Any]) -> NetworkMessage:
    version, code, payload = (row.get(name, UNDEFINED) for name in ("version", "code", "payload"))
    _major_version(version)
    kind = _kind(code, _codes(version))
    if type(payload) is not dict:
        raise StreamrError(f"Expected payload to be an object but was {checks.js_text(payload)}.")
    fields = {name: payload.get(name, UNDEFINED) for name in OBJECTS[kind]}
    if fields.get("streamPartition") is UNDEFINED:
        fields["streamPartition"] = 0
    values = _values(fields) or {"status": payload}
    return NetworkMessage(type=kind, version=version, as_object=True, **values)


def _values(fields: dict[str, Any]) -> dict[str, Any]:
    return {FIELDS[name][0]: FIELDS[name][1](name, value) for name, value in fields.items()}


def _codes(version: str) -> dict[int, NetworkType]:
    return CODES if _major_version(version) >= WRAPPED_VERSION else OLD_CODES


def _version_or(version: Any, default: str) -> str:
    return version if type(version) is str and _VERSION.fullmatch(version) else default


def _major_version(version: Any) -> int:
    found = _VERSION.fullmatch(version) if type(version) is str else None
    if found is None:
        raise StreamrError(f"Unsupported version: {checks.js_text(version)}, message: a version is like {S2_VERSION}")
    return int(found[1])


def _kind(value: Any, codes: dict[int, NetworkType]) -> NetworkType:
    if type(value) is not int or value not in codes:
        if codes is OLD_CODES and type(value) is int and value in UNSUPPORTED_CODES:
            raise StreamrError(f"Unsupported type: {UNSUPPORTED_CODES[value]}, message: {_WRAPPER_REQUIRED}")
        listed = ",".join(map(str, codes))
        raise StreamrError(f"Unsupported type: {checks.js_text(value)}, message: Supported types: [{listed}]")
    return codes[value]
