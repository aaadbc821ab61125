"""The schema of records: a good checksum says that a record is what was written, not that it is valid.

Every record that is read, at a start, later or by a command, is checked against these tables. The adapter of a protocol
checks its own members (`Adapter.flaw`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from gateway.core.bounded_maps import CACHED_CHANNELS
from gateway.core.channels import valid_name

MAX_SEQ: Final = (1 << 43) - 1  # the canonical id has no room for more, and direct messages have the ids beyond
MAX_TIME: Final = (1 << 48) - 1  # ms; the canonical id has no room for more
MAX_NUMBER: Final = (1 << 62) - 1  # of a peer, or an author's timestamp in ms: a column of the index holds it

FieldCheck = Callable[[Any], bool]


def integer_in(least: int, most: int) -> FieldCheck:
    """Make a check that a value is an integer from *least* to *most*."""
    return lambda value: type(value) is int and least <= value <= most


def is_string(value: Any) -> bool:
    """Whether *value* is a string."""
    return type(value) is str


def is_string_list(value: Any) -> bool:
    """Whether *value* is a list of strings."""
    return type(value) is list and all(map(is_string, value))


def is_object(value: Any) -> bool:
    """Whether *value* is an object."""
    return type(value) is dict


def is_list(value: Any) -> bool:
    """Whether *value* is a list."""
    return type(value) is list


def is_string_map(value: Any) -> bool:
    """Whether *value* is an object of strings."""
    return type(value) is dict and all(map(is_string, value.values()))


def is_channel_name(value: Any) -> bool:
    """Whether *value* can be the name of a channel."""
    return type(value) is str and _is_name(value)


def accept_any(_value: Any) -> bool:
    """Accept any value: an adapter checks it."""
    return True


_is_name = lru_cache(CACHED_CHANNELS)(lambda name: len(name) < 1024 and valid_name(name))
_is_number, _is_timestamp = integer_in(0, MAX_NUMBER), integer_in(-MAX_NUMBER, MAX_NUMBER)

# fmt: off
COMMON_FIELDS: Final[dict[str, FieldCheck]] = {
    "seq": integer_in(1, MAX_SEQ), "time": integer_in(0, MAX_TIME), "kind": is_string,
}
MESSAGE_FIELDS: Final[dict[str, FieldCheck]] = {
    "channel": is_channel_name, "id": is_string, "protocol": is_string, "peer": _is_number, "content": accept_any,
}
OPTIONAL_FIELDS: Final[dict[str, FieldCheck]] = {
    "sender": is_string, "sender_protocol": is_string, "timestamp": _is_timestamp, "parent": is_string,
    "native": is_object, "ids": is_string_list, "key": is_string, "refs": is_object, "undelivered": is_string_list,
    "wire": is_string,
}
NUMBER_BLOCK_FIELDS: Final[dict[str, FieldCheck]] = {"first": _is_number, "count": integer_in(1, 1 << 20)}
FACT_FIELDS: Final[dict[str, dict[str, FieldCheck]]] = {
    "start":   {"gateway": is_string, "version": is_string},
    "peer":    {"peer": _is_number, "protocol": is_string, "sender": is_string},
    "channel": {"channel": is_channel_name, "addresses": is_string_map, "open": lambda value: type(value) is bool},
    "entity":  {"protocol": is_string, "native": accept_any, "wire": is_string},
    "form":    {"protocol": is_string, "of": integer_in(1, MAX_SEQ), "native": accept_any},
    "counts":  {"minute": _is_timestamp, "flows": is_list},
}
# fmt: on


def schema_error(record: Mapping[str, Any]) -> str | None:
    """Why the fields of *record* are not valid; None if they are."""
    if (wrong := _field_error(COMMON_FIELDS, record)) is not None:
        return wrong
    kind = record["kind"]
    if kind == "message":
        return _field_error(MESSAGE_FIELDS, record) or next(
            (
                f"its {name} is not valid"
                for name, check in OPTIONAL_FIELDS.items()
                if name in record and not check(record[name])
            ),
            None,
        )
    if kind not in FACT_FIELDS:
        return f"{kind[:40]!r} is not a kind of record"
    if kind == "peer" and record.get("name") is not None and not is_string(record["name"]):
        return "its name is not valid"
    return _field_error(NUMBER_BLOCK_FIELDS if kind == "peer" and "first" in record else FACT_FIELDS[kind], record)


def _field_error(checks: Mapping[str, FieldCheck], record: Mapping[str, Any]) -> str | None:
    for name, check in checks.items():
        if name not in record:
            return f"it has no {name}"
        if not check(record[name]):
            return f"its {name} is not valid"
    return None
