"""The rule by which JSON is read: at every door, and when the log is read back.

What is accepted here can be loaded again by whoever reads the log; what is refused here never gets in. A text of at
most `SHORT_SIZE` bytes that orjson reads is read the same here, so a hot path may ask orjson itself.

Laws of this file. No loop of Python's goes over the characters of a text: each step is a call that is linear in the
text, whatever it holds (see `gateway.core.nesting`). `check` makes no value of it; `loads` does, which costs up to ten
times as much, so ask it only for what is needed as a value.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
import orjson

from .nesting import depth, has_more_values

# Deeper than anything a person writes, far below what the readers of the log can load.
MAX_DEPTH = 200
MAX_VALUES = 1 << 14  # in a frame that is made into values: they take some 10 ms at most
SHORT_SIZE = 2 * MAX_DEPTH  # bytes; what is nested too deeply and closed again is longer
SURROGATE_ERRORS = "backslashreplace"  # how half a character is encoded, which the log writes as its escape
_MAX_DIGITS = 4_300  # of a number that int() takes; a longer one is beyond a double as well

# Every number beyond 64 bits or a double has one of these, and so have few others.
_LONG_NUMBER: Final = re.compile(r"\d{19}|[eE]\+?\d{3}")

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # integers that orjson keeps
_INFINITE: Final = (float("inf"), float("-inf"))

_ANYTHING: Final = msgspec.json.Decoder(msgspec.Raw)


class _Reply(msgspec.Struct):
    """What a message that is an object says of itself; the rest of it is skipped."""

    inReplyTo: msgspec.Raw = msgspec.Raw()  # noqa: N815  # as it stands in messages


_OBJECT: Final = msgspec.json.Decoder(_Reply)


def loads(text: bytes | str, max_depth: int = MAX_DEPTH, max_values: int | None = None) -> Any:
    """Read one JSON value; a `ValueError` says what is wrong with it.

    orjson reads nearly everything. What it refuses although JSON allows it (numbers beyond a double, lone surrogates)
    is read by the standard library: the former become null, the latter stay escapes. Whoever reads it, an integer
    beyond 64 bits becomes the nearest double.
    NaN and Infinity are not JSON. Nesting over *max_depth* is refused, and what has more than *max_values* values
    before any of them is made.
    """
    if max_values is not None and len(text) > max_values:
        check_value_count(text.encode(errors=SURROGATE_ERRORS) if isinstance(text, str) else text, max_values)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        check(text.encode(errors=SURROGATE_ERRORS) if isinstance(text, str) else text, max_depth)
        return _loads_slowly(text if isinstance(text, str) else text.decode())
    _check_depth(text, max_depth)
    return value


def check_value_count(text: bytes, max_values: int = MAX_VALUES) -> None:
    """Raise a `ValueError` where *text* has more than *max_values* values, or is no JSON."""
    if has_more_values(text, max_values):
        raise ValueError(f"more than {max_values:,} values")


def is_json(text: str) -> bool:
    """Whether `loads` reads *text*."""
    try:
        if len(text) <= SHORT_SIZE:  # nearly always, and this is asked for each message
            orjson.loads(text)
            return True
    except orjson.JSONDecodeError:
        pass
    try:
        check(text.encode(errors=SURROGATE_ERRORS))
    except ValueError:
        return False
    return True


def check(text: bytes, max_depth: int = MAX_DEPTH) -> str | None:
    """Raise a `ValueError` where `loads` would, without making a value; what the message answers, if it is an object.

    That is the string `inReplyTo`. Most MiBs take less than 5 ms, the worst 17; `loads` takes up to 90 for its values.
    """
    if not text.isascii():
        text.decode()  # a UnicodeDecodeError is a ValueError
    try:
        try:
            reply = _scan(text)
        except msgspec.DecodeError:
            if rb"\u" not in text:
                raise
            reply = _scan_lone_surrogates(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {max_depth}") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    _check_depth(text, max_depth)
    return loads(reply) if reply.startswith(b'"') else None


def dumps(value: Any) -> bytes:
    """Write *value* compactly as UTF-8; lone surrogates and big integers included."""
    try:
        return orjson.dumps(value)
    except TypeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        try:
            return text.encode()
        except UnicodeEncodeError:
            return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def one_line(text: bytes) -> bytes:
    """The same JSON value on one line: outside of strings JSON's line breaks are mere space."""
    return text.replace(b"\n", b" ").replace(b"\r", b" ") if 10 in text or 13 in text else text  # ints: 7 times faster


def _scan(text: bytes) -> bytes:
    """Go through *text* without making a value of it; the text of its `inReplyTo`, empty without one."""
    if text.lstrip(b" \t\r\n")[:1] == b"{":
        return bytes(_OBJECT.decode(text).inReplyTo)
    _ANYTHING.decode(text)
    return b""


def _scan_lone_surrogates(text: bytes) -> bytes:
    """The same for a *text* with half a surrogate, which JSON allows; an id is then taken only as it is written."""
    # Other escapes in the place of those of surrogates; whether a backslash stands before them changes nothing.
    reply = _scan(text.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0"))
    return b"" if rb"\u" in reply else reply


def _loads_slowly(text: str) -> Any:
    if _LONG_NUMBER.search(text) is None:  # then the standard library calls nothing of Python's, and reads as orjson
        return json.loads(text)
    try:
        value = json.loads(text)  # what is beyond a double is infinite
    except ValueError:  # int() refuses a number
        value = json.loads(text, parse_int=_int)
    return _as_doubles(value)


def _int(digits: str) -> float | int:
    return int(digits) if len(digits.lstrip("-")) <= _MAX_DIGITS else float(digits)


def _as_doubles(value: Any) -> Any:
    """*value* with doubles for integers beyond 64 bits, as orjson reads them, and null for what is infinite."""
    root = [value]
    todo: list[Any] = [root]
    while todo:
        place = todo.pop()
        for key, each in place.items() if type(place) is dict else enumerate(place):
            kind = type(each)
            if kind is int and not _LEAST <= each <= _MOST:
                try:
                    place[key] = float(each)
                except OverflowError:
                    place[key] = None
            elif kind is float:
                if each in _INFINITE:
                    place[key] = None
            elif kind is list or kind is dict:
                todo.append(each)
    return root[0]


def _check_depth(text: bytes | str, max_depth: int) -> None:
    if len(text) > max_depth and _brackets(text) > max_depth and depth(text) > max_depth:
        raise ValueError(f"nested deeper than {max_depth}")


def _brackets(text: bytes | str) -> int:
    return text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
