"""The rule by which JSON is read: at every door, and when the log is read back.

What is accepted here can be loaded again by whoever reads the log; what is refused here never gets in. A text of at
most `SHORT` bytes that orjson reads is read the same here, so a hot path may ask orjson itself.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

# Deeper than anything a person writes, far below what the readers of the log can load.
MAX_DEPTH = 200
SHORT = 2 * MAX_DEPTH  # bytes; what is nested too deeply and closed again is longer
_MAX_DIGITS = 4_000  # int() refuses a little more; such a number is beyond a double as well


def loads(text: bytes | str, max_depth: int = MAX_DEPTH) -> Any:
    """Read one JSON value; a `ValueError` says what is wrong with it.

    orjson reads nearly everything. What it refuses although JSON allows it (numbers beyond a double,
    lone surrogates) is read by the standard library: the former become null, the latter stay escapes.
    NaN and Infinity are not JSON. Nesting over *max_depth* is refused.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if _depth(text) > max_depth:
            raise ValueError(f"nested deeper than {max_depth}") from None
        return _loads_slowly(text, error)
    if len(text) > 2 * max_depth and _brackets(text) > max_depth and _depth(text) > max_depth:
        raise ValueError(f"nested deeper than {max_depth}")
    return value


def is_json(text: str) -> bool:
    """Whether `loads` reads *text*."""
    try:
        if len(text) <= SHORT:  # nearly always, and this is asked for each message
            orjson.loads(text)
            return True
    except orjson.JSONDecodeError:
        pass
    try:
        loads(text)
    except ValueError:
        return False
    return True


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


def _loads_slowly(text: bytes | str, error: ValueError) -> Any:
    if isinstance(text, bytes):
        text = text.decode()  # a UnicodeDecodeError is a ValueError
    if text.startswith("\ufeff"):
        raise error
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_float, parse_int=_int)


def _int(digits: str) -> int | float | None:
    return int(digits) if len(digits) < _MAX_DIGITS else _float(digits)


def _float(digits: str) -> float | None:
    value = float(digits)
    return None if value in (float("inf"), float("-inf")) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _brackets(text: bytes | str) -> int:
    return text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")


def _depth(text: bytes | str) -> int:
    """The deepest nesting of brackets outside strings; any text has one."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
