"""Reads and writes tracker messages (S0, Tracker Protocol) in versions 1 and 2, by one table of fields.

The libraries know types 1 to 4 in version 1 and 1, 2, 5 and 6 in version 2; S0's examples write 14 to 17 for 1 to 4.
All of them are read in both versions, and a peer is answered in its own version and numbers. Whatever the bytes,
`decode_tracker` ends in a message or a `StreamrError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from gateway.core import jsontext

from . import checks
from .checks import UNDEFINED
from .errors import StreamrError

VERSIONS: Final = (1, 2)
S0_OFFSET: Final = 13  # what S0's examples add to the types of its table
MAX_NODES: Final = 1_000  # addresses in one message
MAX_VALUES: Final = 1 << 15  # in one message: a status of 1,000 stream partitions has some 20,000


class TrackerType(IntEnum):
    """The types of S0's table, and the two that the libraries added."""

    STATUS = 1
    INSTRUCTION = 2
    STORAGE_NODES_REQUEST = 3
    STORAGE_NODES_RESPONSE = 4
    RELAY = 5
    ERROR = 6


def _object(name: str, value: Any) -> Any:
    if type(value) is dict:
        return value
    if value is UNDEFINED or value is None:
        raise StreamrError(f"Expected {name} to not be {checks.js_text(value)}.")
    raise StreamrError(f"Expected {name} to be an object but was {checks.js_text(value)}.")


def node_list(name: str, value: Any) -> tuple[str, ...]:
    """An array of at most `MAX_NODES` addresses."""
    nodes = checks.array(name, value)
    if len(nodes) > MAX_NODES:
        raise StreamrError(f"Expected {name} to have at most {MAX_NODES} elements.")
    for index, node in enumerate(nodes):
        if len(checks.text(f"{name}[{index}]", node)) > checks.MAX_ID:
            raise StreamrError(f"Expected {name}[{index}] to have at most {checks.MAX_ID} characters.")
    return tuple(nodes)


# fmt: off
# What follows [version, type: the fields of each message.
_PARTITION = ("streamId", "streamPartition")
TRACKER: Final[dict[TrackerType, tuple[str, ...]]] = {
    TrackerType.STATUS:                 ("requestId", "status"),
    TrackerType.INSTRUCTION:            ("requestId", *_PARTITION, "nodeAddresses", "counter"),
    TrackerType.STORAGE_NODES_REQUEST:  ("requestId", *_PARTITION),
    TrackerType.STORAGE_NODES_RESPONSE: ("requestId", *_PARTITION, "nodeAddresses"),
    TrackerType.RELAY:                  ("requestId", "originator", "targetNode", "subType", "data"),
    TrackerType.ERROR:                  ("requestId", "errorCode", "targetNode"),
}
# S0's example of a Status has no requestId.
SHORT_STATUS: Final = ("status",)

# The attribute of a message that each field of the table becomes, and the check of its value.
FIELDS: Final[dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "requestId":       ("request_id", checks.text),
    "status":          ("status", _object),
    "streamId":        ("stream_id", checks.nonempty),
    "streamPartition": ("stream_partition", checks.integer),
    "nodeAddresses":   ("nodes", node_list),
    "counter":         ("counter", checks.integer),
    "originator":      ("originator", _object),
    "targetNode":      ("target", checks.nonempty),
    "subType":         ("sub_type", checks.nonempty),
    "data":            ("data", _object),
    "errorCode":       ("error_code", checks.nonempty),
}
# fmt: on

# The numbers that a type may have, as numbers and as texts: the libraries take both.
_TYPES: Final = {int(kind): kind for kind in TrackerType} | {kind + S0_OFFSET: kind for kind in list(TrackerType)[:4]}
_NUMBERS: Final = {spelling: number for number in _TYPES for spelling in (number, str(number))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerMessage:
    """One tracker message; `TRACKER` says which fields its type has. *number* is the type number as it was written."""

    type: TrackerType
    request_id: str = ""
    stream_id: str = ""
    stream_partition: int = 0
    nodes: tuple[str, ...] = ()
    counter: int = 0
    status: dict[str, Any] = field(default_factory=dict)
    originator: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    sub_type: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    error_code: str = ""
    version: int = 2
    number: int = 0


def decode_tracker(data: bytes | str) -> TrackerMessage:
    """Read one tracker message; anything else raises a `StreamrError` with the requestId, if that can be read."""
    try:
        value = jsontext.loads(data, max_values=MAX_VALUES)
    except ValueError as error:
        raise StreamrError(f"Invalid JSON: {error}") from None
    row = value if isinstance(value, list) else []
    try:
        return _decode(row)
    except StreamrError as error:
        error.request_id = checks.echoed_id(row[2]) if len(row) > 2 else ""
        raise


def encode_tracker(message: TrackerMessage) -> bytes:
    """Write *message* in its version and, where it has one, with its own number for the type."""
    values = [getattr(message, FIELDS[name][0]) for name in TRACKER[message.type]]
    return jsontext.dumps([message.version, message.number or int(message.type), *values])


def reply_number(kind: TrackerType, asked: TrackerMessage) -> int:
    """The type number of *kind* in a reply to *asked*, whose sender may use the numbers of S0's examples."""
    return kind + S0_OFFSET if asked.number > S0_OFFSET and kind <= TrackerType.STORAGE_NODES_RESPONSE else int(kind)


def _decode(row: list[Any]) -> TrackerMessage:
    version, given = checks.padded(row, 2)
    if type(version) is not int or version not in VERSIONS:
        raise StreamrError(_unsupported("version", version, VERSIONS))
    number = _NUMBERS.get(given) if type(given) in (int, str) else None
    if number is None:
        raise StreamrError(_unsupported("type", given, tuple(_TYPES)))
    kind = _TYPES[number]
    names = SHORT_STATUS if kind is TrackerType.STATUS and len(row) == 3 else TRACKER[kind]
    fields = dict(zip(names, checks.padded(row[2:], len(names)), strict=True))
    values = {FIELDS[name][0]: FIELDS[name][1](name, value) for name, value in fields.items()}
    return TrackerMessage(type=kind, version=version, number=number, **values)


def _unsupported(what: str, value: Any, supported: tuple[int, ...]) -> str:
    listed = ",".join(map(str, supported))
    return f"Unsupported {what}: {checks.js_text(value)}, message: Supported {what}s: [{listed}]"
