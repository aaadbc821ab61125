"""Reading and writing JSON: from every protocol, and when the log is read back.

JSON that is accepted here can be loaded again by any reader of the log; the rest is refused here and never logged. A
text of at most `SHORT_SIZE` bytes that orjson reads is read the same here, so a hot path may call orjson itself.

Laws of this file. No Python loop goes over the characters of a text: each step is a call that is linear in the text,
whatever it contains (see `gateway.core.nesting`). `check` makes no values; `loads` does, which costs up to ten times as
much, so call it only if the value is needed.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import orjson

from .nesting import depth, has_more_values

# Deeper than anything a person writes, and far below what readers of the log can load.
MAX_DEPTH = 200
MAX_VALUES = 1 << 14  # in a frame that is loaded: they take some 10 ms at most
SHORT_SIZE = 2 * MAX_DEPTH  # bytes; JSON that is nested too deeply is longer
SURROGATE_ERRORS = "backslashreplace"  # encodes a lone surrogate as its escape, as the log does
_MAX_DIGITS = 309  # of an integer that a double can hold
# Digits of a number for which the standard library calls `_int` for each integer. Its own time for one grows with the
# square of the digits: a MiB of integers of 4,299 digits takes 35 ms, one of 500 takes 5.
_MANY_DIGITS = 500

# What every number beyond 64 bits or a double contains, and few others do, if zeros stand for all digits. Such texts
# are found in a millisecond for each MiB, a regular expression takes 50.
_DIGITS_AND_E: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBERS: Final = (b"0" * 19, b"e000", b"e+000")

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # integers that orjson keeps
_INFINITE: Final = (float("inf"), float("-inf"))

_ANYTHING: Final = msgspec.json.Decoder(msgspec.Raw)


class _Reply(msgspec.Struct):
    """The member of a content that matters here, if the content is an object; all others are skipped."""

    inReplyTo: msgspec.Raw = msgspec.Raw()  # noqa: N815  # as it stands in messages


_OBJECT: Final = msgspec.json.Decoder(_Reply)


def loads(text: bytes | str, max_depth: int = MAX_DEPTH, max_values: int | None = None) -> Any:
    """Load one JSON value; raises a `ValueError` that says what is wrong with it.

    orjson reads nearly everything. What it refuses although JSON allows it (numbers beyond a double, lone surrogates)
    is read by the standard library: such a number becomes null, a surrogate stays. In both, an integer beyond 64 bits
    becomes the nearest double. NaN and Infinity are not JSON. Nesting over *max_depth* is refused, and so are more than
    *max_values* values, before any of them is made.
    """
    if max_values is not None and len(text) > max_values:
        check_value_count(text.encode(errors=SURROGATE_ERRORS) if isinstance(text, str) else text, max_values)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        check(text.encode(errors=SURROGATE_ERRORS) if isinstance(text, str) else text, max_depth)
        return _loads_slowly(text if isinstance(text, str) else text.decode())
    check_depth(text, max_depth)
    return value


def check_value_count(text: bytes, max_values: int = MAX_VALUES) -> None:
    """Raise a `ValueError` if *text* has more than *max_values* values; other text than JSON may pass."""
    if has_more_values(text, max_values):
        raise ValueError(f"more than {max_values:,} values")


def is_json(text: str) -> bool:
    """Whether `loads` reads *text*."""
    try:
        if len(text) <= SHORT_SIZE:  # nearly always, and this is called for each message
            orjson.loads(text)
            return True
    except orjson.JSONDecodeError:
        pass
    try:
        check(text.encode(errors=SURROGATE_ERRORS))
    except ValueError:
        return False
    return True


def check(text: bytes, max_depth: int = MAX_DEPTH) -> None:
    """Raise a `ValueError` if `loads` would, without making values.

    Most texts of a MiB take less than 5 ms, the worst 17; `loads` takes up to 90 to make the values.
    """
    find_reply_id(text, max_depth)


def find_reply_id(text: bytes, max_depth: int = MAX_DEPTH) -> str | None:
    """Return the string `inReplyTo` of *text*, if that is an object with one; raise a `ValueError` as `check` does."""
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
    check_depth(text, max_depth)
    return loads(reply) if reply.startswith(b'"') else None


def check_depth(text: bytes | str, max_depth: int) -> None:
    """Raise a `ValueError` if *text*, which is JSON or begins like it, is nested deeper than *max_depth*."""
    if len(text) > max_depth and _brackets(text) > max_depth and depth(text) > max_depth:
        raise ValueError(f"nested deeper than {max_depth}")


def dumps(value: Any) -> bytes:
    """Write *value* compactly as UTF-8, even with lone surrogates and big integers."""
    try:
        return orjson.dumps(value)
    except TypeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        try:
            return text.encode()
        except UnicodeEncodeError:
            return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def normal_form(text: bytes, without: str) -> bytes:
    """The value *text*, which `loads` reads, in one way of writing it, members sorted, numbers as doubles.

    The member *without* of an object is left out if it is a string.
    """
    value = json.loads(text, parse_int=float)
    if type(value) is dict and type(value.get(without)) is str:
        del value[without]
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate
        return json.dumps(value, sort_keys=True).encode()


def one_line(text: bytes) -> bytes:
    """The same JSON value on one line: line breaks outside strings are whitespace, and strings contain none."""
    return text.replace(b"\n", b" ").replace(b"\r", b" ") if 10 in text or 13 in text else text  # ints: 7 times faster


def _scan(text: bytes) -> bytes:
    """Check *text* without making values; return the text of its `inReplyTo`, empty if it has none."""
    if text.lstrip(b" \t\r\n")[:1] == b"{":
        return bytes(_OBJECT.decode(text).inReplyTo)
    _ANYTHING.decode(text)
    return b""


def _scan_lone_surrogates(text: bytes) -> bytes:
    """Do the same for a *text* with a lone surrogate, which JSON allows; an id with an escape is then ignored."""
    # Put other escapes in place of those of surrogates; a backslash before them makes no difference.
    reply = _scan(text.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0"))
    return b"" if rb"\u" in reply else reply


def _loads_slowly(text: str) -> Any:
    numbers = text.encode(errors=SURROGATE_ERRORS).translate(_DIGITS_AND_E)
    if not any(each in numbers for each in _LONG_NUMBERS):  # then the standard library reads as orjson does
        return json.loads(text)
    parse_int = _int if b"0" * _MANY_DIGITS in numbers else None
    return _as_doubles(json.loads(text, parse_int=parse_int))  # a number beyond a double is infinite


def _int(digits: str) -> float | int:
    return int(digits) if len(digits) <= _MAX_DIGITS else _INFINITE[digits[0] == "-"]


def _as_doubles(value: Any) -> Any:
    """*value* with doubles for integers beyond 64 bits, as orjson reads them, and None for infinity."""
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


def _brackets(text: bytes | str) -> int:
    return text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
