"""Errors as `application/problem+json` (RFC 9457): what happened, and what to do about it.

Every error becomes its wire form here and nowhere else: what the gateway refuses (`RequestError`), invalid parameters
that FastAPI finds, and bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gateway.core.channels import MAX_NAME, valid_name
from gateway.core.errors import (
    Conflict,
    Forbidden,
    OutcomeUnknown,
    RequestError,
    Throttled,
    TooManyChannels,
    Unavailable,
    UnknownChannel,
)
from gateway.core.jsontext import dumps
from gateway.core.message import REST

from .bodies import BodyRefused
from .kit import BODY_CUT_OFF, INTERNAL_ERROR, report_bug, retry_after

MEDIA_TYPE = "application/problem+json"

NAME_RULE = f"a name has 1 to {MAX_NAME} characters, no control characters and no /@"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Problem(RequestError):
    """A request refused with an HTTP *status*; *detail* says why, and what to do about it."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def body(self, **more: Any) -> bytes:
        """Return the problem as a JSON object; *more* are extension members."""
        title = HTTPStatus(self.status).phrase
        return dumps({"type": "about:blank", "title": title, "status": self.status, "detail": self.detail} | more)


def shortened(name: str) -> str:
    """Return *name*, which a client sent, quoted and cut to the maximum length of a name."""
    return repr(name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…")


def _forbidden(error: Forbidden) -> Problem:
    return Problem(403, f"{error}; use a key with the right `{error.verb}:{error.channel or '*'}`")


def _throttled(error: Throttled) -> Problem:
    return Problem(429, str(error), retry_after(error))


def _unknown_channel(error: UnknownChannel) -> Problem:
    if not valid_name(str(error)):
        return Problem(404, f"no channel can be called {shortened(str(error))}: {NAME_RULE}")
    return Problem(404, f"there is no channel {str(error)!r}; GET /v1/channels lists those that you may see")


def _too_many_channels(error: TooManyChannels) -> Problem:
    return Problem(507, f"{error}; use an existing one: GET /v1/channels lists those that you may see")


def _conflict(error: Conflict) -> Problem:
    return Problem(422, f"{error}; use another Idempotency-Key for another message")


def _unavailable(error: Unavailable) -> Problem:
    return Problem(503, f"{error}; nothing was accepted", {"Retry-After": "1"})


def _outcome_unknown(error: OutcomeUnknown) -> Problem:
    return Problem(503, f"{error}; it may be accepted later; repeat it with the same Idempotency-Key to find out")


PROBLEMS: dict[type[RequestError], Callable[[Any], Problem]] = {
    Problem: lambda problem: problem,
    BodyRefused: lambda error: Problem(error.status, str(error), error.headers),
    Forbidden: _forbidden,
    Throttled: _throttled,
    UnknownChannel: _unknown_channel,
    TooManyChannels: _too_many_channels,
    Conflict: _conflict,
    Unavailable: _unavailable,
    OutcomeUnknown: _outcome_unknown,
}


def problem_of(error: RequestError) -> Problem:
    """Return the problem that *error* is reported as."""
    return PROBLEMS.get(type(error), lambda other: Problem(400, str(other)))(error)


def problem_response(problem: Problem) -> Response:
    """Return the response that carries *problem*."""
    return Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)


async def handle_errors(handler: Handler, request: Request) -> Response:
    """Return the response of *handler*, or the problem that its error is; problems are counted."""
    try:
        return await handler(request)
    except Exception as error:
        problem = _problem(error, request)
        error.__traceback__ = None  # breaks a cycle that would keep its frames, and the body, until a collection
    request.app.state.gateway.metrics.count("refused", REST, str(problem.status))
    return problem_response(problem)


def _problem(error: Exception, request: Request) -> Problem:
    match error:
        case RequestError():
            return problem_of(error)
        case RequestValidationError():
            return Problem(422, _parameter_faults(error))
        case HTTPException():
            return Problem(error.status_code, error.detail, error.headers)
        case ClientDisconnect():
            return Problem(400, BODY_CUT_OFF)
    report_bug(error, request, request.app.state.gateway.metrics)
    return Problem(500, INTERNAL_ERROR)


def _parameter_faults(error: RequestValidationError) -> str:
    return "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
