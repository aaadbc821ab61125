"""Limits how long the heads of requests may be: parsing them takes time before it is known who sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .problems import Problem

MAX_TARGET: Final = 8_192  # bytes of a path and its query: a channel's name in percent-encoded UTF-8 has up to 3,060
MAX_LINE: Final = 8_192  # bytes of a header, as in nginx
MAX_HEADERS: Final = 100  # of a request, as in Apache
MAX_HEAD: Final = 1 << 16  # bytes of a request's first line and headers

TOO_LONG_TARGET: Final = f"a path and its query have at most {MAX_TARGET:,} bytes"
TOO_LONG_HEAD: Final = f"a request has at most {MAX_HEADERS} headers, of {MAX_LINE:,} bytes each, {MAX_HEAD:,} in all"


def head_problem(scope: Mapping[str, Any]) -> Problem | None:
    """Return the problem with the length of the head of the request whose ASGI scope is *scope*, if there is one."""
    if len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"]) > MAX_TARGET:
        return Problem("target-too-long", TOO_LONG_TARGET)
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or any(len(name) + len(value) > MAX_LINE for name, value in headers):
        return Problem("head-too-long", TOO_LONG_HEAD)
    return None
