"""The errors of the client: one family, made from its answers (RFC 9457) or from failures to connect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

import httpx

PROBLEM = "application/problem+json"
MAX_PROBLEM = 1 << 20  # bytes of a problem that are read
MAX_DETAIL = 4_096  # characters of what a gateway says that are shown
MAX_WAIT = 3600.0  # seconds that a gateway may ask to wait


class TrellisError(Exception):
    """The base class of all errors that the client makes."""

    temporary: ClassVar[bool] = False  # whether the same request may succeed later


class BadAddress(TrellisError):
    """The address of the gateway is not a URL that the client can use."""


class Unreachable(TrellisError):
    """Nothing answers, or the connection was lost. *sent*: whether the request may have reached the gateway."""

    temporary = True

    def __init__(self, reason: str, *, sent: bool = True) -> None:
        super().__init__(reason)
        self.sent = sent


class Untrusted(TrellisError):
    """The gateway's certificate is not trusted.

    *unknown_issuer*: because no authority that the client trusts has issued it; else it has expired, or is for another
    name.
    """

    def __init__(self, reason: str, *, unknown_issuer: bool = True) -> None:
        super().__init__(reason)
        self.unknown_issuer = unknown_issuer


class NotAGateway(TrellisError):
    """Something answers that is not a Trellis gateway."""


class Refused(TrellisError):
    """The gateway refuses the request: *detail* says why, and what to do about it.

    *status* is that of HTTP, and *code* names the problem for programs; docs/reference/problems.md lists all.
    *retry_after* is the time in seconds that the gateway asks to wait, 0 if it asks for none. *line* is the position of
    a refused message among those of `publish_many`, from 1. *problem* has all members of the problem.
    """

    def __init__(self, problem: Mapping[str, Any], retry_after: float = 0.0) -> None:
        self.problem = dict(problem)
        self.status = int(problem["status"])
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail") or problem.get("title") or "refused")[:MAX_DETAIL]
        self.retry_after = retry_after
        line = problem.get("line")
        self.line: int | None = None if line is None else int(line)
        super().__init__(f"{self.status}: {self.detail}")


class Unauthorized(Refused):
    """The request needs an API key, or the key is not valid (401)."""


class Forbidden(Refused):
    """The key lacks the right (403)."""


class NotFound(Refused):
    """There is no such channel, message or peer (404)."""


class Conflict(Refused):
    """Another message came with the same idempotency key before, or a parameter is not valid (409, 422)."""


class Throttled(Refused):
    """The rate limit is exceeded (429)."""

    temporary = True


class Unavailable(Refused):
    """The gateway, or a proxy before it, cannot answer at the moment (502, 503, 504)."""

    temporary = True


BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Conflict,
    429: Throttled,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def refusal(problem: Mapping[str, Any], retry_after: float = 0.0) -> Refused:
    """Return the error that *problem* stands for."""
    return BY_STATUS.get(int(problem["status"]), Refused)(problem, retry_after)


def error_of(response: httpx.Response) -> TrellisError:
    """Return the error that *response*, which was read, stands for."""
    retry_after = _seconds(response.headers.get("retry-after"))
    media_type = response.headers.get("content-type", "").partition(";")[0]
    found = _members(response)
    if media_type == PROBLEM and found:
        return refusal(found | {"status": response.status_code}, retry_after)
    if BY_STATUS.get(response.status_code) is Unavailable:  # `/readyz`, which says why, or a proxy
        detail = found.get("status") or HTTPStatus(response.status_code).phrase
        return refusal({"status": response.status_code, "detail": str(detail)}, retry_after)
    return not_a_gateway(response)


def _members(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in *response*; an empty one if there is none."""
    try:
        found = json.loads(response.content[:MAX_PROBLEM])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def not_a_gateway(response: httpx.Response) -> NotAGateway:
    """Return the error for a *response* that no gateway gives."""
    phrase = response.reason_phrase or "refused"
    return NotAGateway(f"{response.status_code}: {phrase}; is {response.url} of a Trellis gateway?")


def _seconds(value: str | None) -> float:
    """Return the seconds of a `Retry-After`; 0 for a date, which no gateway sends."""
    return min(MAX_WAIT, float(value)) if value is not None and value.isdecimal() else 0.0
