"""JSON as it is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Union

Json: TypeAlias = Union[bool, int, float, str, Sequence["Json"], Mapping[str, "Json"], None]  # noqa: UP007  # it names itself

_HALF = re.compile("[\ud800-\udfff]")
_BREAKS = re.compile(rb"[\r\n]+")


class JsonText(bytes):
    """One JSON value in UTF-8, which is sent as it is: `JsonText(b'{"price": 1.10}')` keeps its digits."""


def dumps(value: Any) -> str:
    """Return *value* as JSON; escaped only if it has a lone surrogate, which UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(value) if _HALF.search(text) else text


def encode(content: Json | JsonText) -> bytes:
    """Return *content* as JSON on one line; raises `ValueError` or `TypeError` if it cannot be JSON."""
    if isinstance(content, JsonText):
        return _BREAKS.sub(b" ", content)  # only whitespace between values can contain one
    return dumps(content).encode()
