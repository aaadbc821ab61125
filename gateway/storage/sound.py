"""What a record may say: a good checksum tells that it is what was written, and not that it makes sense.

Every record that is read, at a start, later or by a command, is held against these tables. What belongs to a protocol
is looked at by its adapter (`Adapter.flaw`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from gateway.core.channels import valid_name

MAX_SEQ: Final = (1 << 43) - 1  # beyond it are the ids of direct messages, and what the canonical id has no room for
MAX_TIME: Final = (1 << 48) - 1  # ms, likewise
MAX_NUMBER: Final = (1 << 62) - 1  # of a peer, or what an author says of its time: a column of the index holds it

Check = Callable[[Any], bool]


def whole(least: int, most: int) -> Check:
    """Whether a value is a whole number from *least* to *most*."""
    return lambda value: type(value) is int and least <= value <= most


def is_text(value: Any) -> bool:
    """Whether *value* is a string."""
    return type(value) is str


def are_texts(value: Any) -> bool:
    """Whether *value* is a list of strings."""
    return type(value) is list and all(map(is_text, value))


def is_object(value: Any) -> bool:
    """Whether *value* is an object."""
    return type(value) is dict


def is_list(value: Any) -> bool:
    """Whether *value* is a list."""
    return type(value) is list


def are_addresses(value: Any) -> bool:
    """Whether *value* is an object of strings."""
    return type(value) is dict and all(map(is_text, value.values()))


def is_channel(value: Any) -> bool:
    """Whether *value* can be the name of a channel."""
    return type(value) is str and _is_name(value)


def anything(_value: Any) -> bool:
    """Whatever it is: an adapter knows."""
    return True


_is_name = lru_cache(4096)(lambda name: len(name) < 1024 and valid_name(name))
_is_number, _is_moment = whole(0, MAX_NUMBER), whole(-MAX_NUMBER, MAX_NUMBER)

# fmt: off
HEAD: Final[dict[str, Check]] = {"seq": whole(1, MAX_SEQ), "time": whole(0, MAX_TIME), "kind": is_text}
MESSAGE: Final[dict[str, Check]] = {
    "channel": is_channel, "id": is_text, "protocol": is_text, "peer": _is_number, "content": anything,
}
MAY: Final[dict[str, Check]] = {
    "sender": is_text, "sender_protocol": is_text, "timestamp": _is_moment, "parent": is_text, "native": is_object,
    "ids": are_texts, "key": is_text, "refs": is_object, "undelivered": are_texts, "wire": is_text,
}
BLOCK: Final[dict[str, Check]] = {"first": _is_number, "count": whole(1, 1 << 20)}
FACTS: Final[dict[str, dict[str, Check]]] = {
    "start":   {"gateway": is_text, "version": is_text},
    "peer":    {"peer": _is_number, "protocol": is_text, "sender": is_text},
    "channel": {"channel": is_channel, "addresses": are_addresses, "open": lambda value: type(value) is bool},
    "entity":  {"protocol": is_text, "native": anything, "wire": is_text},
    "form":    {"protocol": is_text, "of": whole(1, MAX_SEQ), "native": anything},
    "counts":  {"minute": _is_moment, "flows": is_list},
}
# fmt: on


def flaw(record: Mapping[str, Any]) -> str | None:
    """What is wrong with the fields of *record*, None if nothing is."""
    if (wrong := _missing(HEAD, record)) is not None:
        return wrong
    kind = record["kind"]
    if kind == "message":
        return _missing(MESSAGE, record) or next(
            (f"its {name} is none" for name, check in MAY.items() if name in record and not check(record[name])), None
        )
    if kind not in FACTS:
        return f"nobody knows the kind {kind[:40]!r}"
    if kind == "peer" and record.get("name") is not None and not is_text(record["name"]):
        return "its name is none"
    return _missing(BLOCK if kind == "peer" and "first" in record else FACTS[kind], record)


def _missing(checks: Mapping[str, Check], record: Mapping[str, Any]) -> str | None:
    for name, check in checks.items():
        if name not in record:
            return f"it has no {name}"
        if not check(record[name]):
            return f"its {name} is none"
    return None
