"""Errors as `application/problem+json` (RFC 9457): what happened, and what to do about it.

Every error becomes its wire form here and nowhere else: what the gateway refuses (`RequestError`), invalid parameters
that FastAPI finds, and bugs. `gateway.http.problem_types` has the table of all problems.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from gateway.core.channels import MAX_NAME, valid_name
from gateway.core.directs import direct_outcome_unknown
from gateway.core.errors import (
    INTERNAL_ERROR,
    Conflict,
    Failed,
    Forbidden,
    OutcomeUnknown,
    RequestError,
    SearchRefused,
    SearchTooLong,
    Throttled,
    TooManyChannels,
    Unavailable,
    UnknownChannel,
)
from gateway.core.jsontext import dumps
from gateway.core.message import REST, Message

from .bodies import BodyRefused, network_of
from .problem_types import CODE_OF_STATUS, PROBLEM_TYPES, uri
from .rest_helpers import BODY_CUT_OFF, report_bug, retry_after

if TYPE_CHECKING:
    from gateway.monitoring.metrics import Metrics

MEDIA_TYPE = "application/problem+json"

NAME_RULE = f"a name has 1 to {MAX_NAME} characters, no control characters, and no `/` right before `@`"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Problem(RequestError):
    """A request that is refused; *code* is that of a row of `PROBLEM_TYPES`, and *detail* is about this occurrence.

    *detail* says why, and what to do about it. *status* is that of the row, unless HTTP allows nothing else here.
    """

    def __init__(
        self, code: str, detail: str, headers: Mapping[str, str] | None = None, status: int | None = None
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.status = PROBLEM_TYPES[code].status if status is None else status
        self.detail = detail
        self.headers = headers or {}

    def body(self, **more: Any) -> bytes:
        """Return the problem as a JSON object; *more* are extension members."""
        title = PROBLEM_TYPES[self.code].title
        named = {"type": uri(self.code), "code": self.code, "title": title, "status": self.status}
        return dumps(named | {"detail": self.detail} | more)


def shortened(name: str) -> str:
    """Return *name*, which a client sent, quoted and cut to the maximum length of a name."""
    return repr(name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…")


def _forbidden(error: Forbidden) -> Problem:
    return Problem("forbidden", f"{error}; use a key with the right `{error.verb}:{error.channel or '*'}`")


def _throttled(error: Throttled) -> Problem:
    return Problem("too-many-requests", str(error), retry_after(error))


def _unknown_channel(error: UnknownChannel) -> Problem:
    if not valid_name(str(error)):
        return Problem("invalid-channel-name", f"no channel can be called {shortened(str(error))}: {NAME_RULE}")
    detail = f"there is no channel {str(error)!r}; GET /v1/channels lists those that you may see"
    return Problem("unknown-channel", detail)


def _too_many_channels(error: TooManyChannels) -> Problem:
    detail = f"{error}; use an existing one: GET /v1/channels lists those that you may see"
    return Problem("too-many-channels", detail)


def _conflict(error: Conflict) -> Problem:
    return Problem("idempotency-conflict", f"{error}; use another Idempotency-Key for another message")


def _unavailable(error: Unavailable) -> Problem:
    return Problem("unavailable", f"{error}; nothing was accepted", {"Retry-After": "1"})


def direct_refusal(message: Message, number: int, delivered: int | None) -> RequestError:
    """Return the error for a direct *message* to the peer with *number* that reached nobody; see `Bus.send_direct`."""
    if delivered is None:
        return direct_outcome_unknown()
    if message.undelivered:
        unfit = ", ".join(message.undelivered)
        return Problem("undeliverable", f"peer {number} cannot get it: too long for {unfit}; send less")
    return Problem(
        "unknown-peer", f"peer {number} is not in {message.channel!r}; GET /v1/channels/{{channel}}/peers lists them"
    )


def _outcome_unknown(error: OutcomeUnknown) -> Problem:
    detail = f"{error}; it may be accepted later; repeat it with the same Idempotency-Key to find out"
    return Problem("outcome-unknown", detail)


BODY_CODES = {408: "body-timeout", 413: "content-too-long", 503: "out-of-memory"}


PROBLEMS: dict[type[RequestError], Callable[[Any], Problem]] = {
    Problem: lambda problem: problem,
    BodyRefused: lambda error: Problem(BODY_CODES[error.status], str(error), error.headers),
    Forbidden: _forbidden,
    Throttled: _throttled,
    UnknownChannel: _unknown_channel,
    TooManyChannels: _too_many_channels,
    Conflict: _conflict,
    SearchRefused: lambda error: Problem("invalid-query", f"text: {error}"),
    SearchTooLong: lambda error: Problem("search-timeout", f"{error}; search for rarer words, or a shorter time"),
    Unavailable: _unavailable,
    OutcomeUnknown: _outcome_unknown,
    Failed: lambda error: Problem("internal-error", str(error)),
}


def problem_of(error: RequestError) -> Problem:
    """Return the problem that *error* is reported as."""
    return PROBLEMS.get(type(error), lambda other: Problem("request-refused", str(other)))(error)


def problem_of_status(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Problem:
    """Return the problem for an error of which only the HTTP *status* is known, such as one of FastAPI's own."""
    code = CODE_OF_STATUS.get(status, "request-refused" if status < 500 else "internal-error")
    return Problem(code, detail, headers, status)


def problem_response(problem: Problem) -> Response:
    """Return the response that carries *problem*."""
    return Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)


async def handle_errors(handler: Handler, request: Request) -> Response:
    """Return the response of *handler*, or the problem that its error is; problems are counted."""
    try:
        return await handler(request)
    except Exception as error:
        problem = refusal(error, request, request.app.state.gateway.metrics)
    return problem_response(problem)


def refusal(error: Exception, request: Request, metrics: Metrics) -> Problem:
    """Return the problem that *error* is for the client, and count it."""
    problem = _problem(error, request, metrics)
    error.__traceback__ = None  # breaks a cycle that would keep its frames, and the body, until a collection
    details = {"method": request.method, "path": request.url.path, "why": problem.detail}
    metrics.refused(REST, str(problem.status), network=network_of(request), **details)
    return problem


def _problem(error: Exception, request: Request, metrics: Metrics) -> Problem:
    match error:
        case RequestError():
            return problem_of(error)
        case RequestValidationError():
            return Problem("invalid-parameter", _parameter_faults(error))
        case HTTPException():
            return problem_of_status(error.status_code, error.detail, error.headers)
        case ClientDisconnect():
            return Problem("body-cut-off", BODY_CUT_OFF)
    report_bug(error, request, metrics)
    return Problem("internal-error", INTERNAL_ERROR)


def _parameter_faults(error: RequestValidationError) -> str:
    return "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
