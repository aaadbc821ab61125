"""What all answers of Streamr's REST interface have in common: who asks, who is let in, how refusals come about."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

import anyio
import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from adapters.streamr.wire.checks import MAX_NAME
from adapters.streamr.wire.ids import NAME
from gateway.access.auth import bearer_token
from gateway.core.errors import OutcomeUnknown, RequestError, Throttled
from gateway.core.jsontext import dumps
from gateway.http.bodies import BodyRefused, network_of

from .core_api import ApiError, RestCaller

if TYPE_CHECKING:
    from adapters.streamr.parts import Parts
    from gateway.core.bus import Bus

    from .data_api import DataApi
    from .stream_management import StreamManagement

MAX_TARGET = 8_192  # bytes of a path and its query: a stream's name in percent-encoded UTF-8 has at most 6,144
CORS = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Streamr-Client",
    "Vary": "Origin",
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
HEAD, GET = "HEAD", "GET"
Explain = Callable[[Exception], tuple[int, str]]  # the status and the text of an error
Tell = Callable[[Exception, int, str], Any]  # what its answer says

logger = structlog.get_logger("trellis")


class Running(NamedTuple):
    """What answers requests, once the adapter has started."""

    parts: Parts
    core_api: StreamManagement
    data: DataApi


class HeadRoute(APIRoute):
    """A route that answers HEAD where it answers GET, as those of the reference do; /docs need not say so."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is for this request."""
        return super().matches({**scope, "method": GET} if scope.get("method") == HEAD else scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it."""
        if scope["method"] == HEAD and GET in (self.methods or ()):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


def guarded(running: Callable[[], Running], handle: Handler, explain: Explain, tell: Tell) -> Handler:
    """Turn refusals into answers, by *explain* and *tell*, and let pages that are welcome read them."""

    async def answer(request: Request) -> Response:
        welcome: dict[str, str] = {}
        parts, core_api, _ = running()
        try:
            origin = request.headers.get("origin")
            core_api.admit(origin, request.headers.get("host"))
            welcome = CORS | {"Access-Control-Allow-Origin": origin} if origin is not None else {}
            _check_target(request)
            core_api.throttle(caller_of(request))
            response = await handle(request)
        except Exception as error:
            status, message = explain(error)
            if status == 500:
                logger.exception("a request failed", method=request.method, path=request.url.path)
                parts.context.services.metrics.count("faults", "request")
            parts.context.services.metrics.count("refused", NAME, str(status))
            response = as_json(tell(error, status, message), status)
            response.headers.update(_headers(error))
            error.__traceback__ = None  # as in `gateway.http.problems`
        response.headers.update(welcome)
        if request.method == HEAD:
            response.body = b""
        return response

    return answer


def _check_target(request: Request) -> None:
    """Raise `ApiError` 414 where the path and the query are too long to be looked at."""
    if len(request.scope.get("raw_path") or request.scope["path"]) + len(request.scope["query_string"]) > MAX_TARGET:
        raise ApiError(414, f"a path and its query have at most {MAX_TARGET} bytes")


def explain(error: Exception) -> tuple[int, str]:
    """The status and the text for an *error*; what is a bug is not told."""
    match error:
        case ApiError() | BodyRefused():
            return error.status, str(error)
        case Throttled():
            return 429, str(error)
        case RequestError():
            return 503, str(error)
        case ClientDisconnect():
            return 400, "the body was cut off"
        case _:
            return 500, "something is wrong with the gateway; its log says more"


def _headers(error: Exception) -> Mapping[str, str]:
    if isinstance(error, BodyRefused):
        return error.headers
    return {"Retry-After": str(ceil(error.retry_after_seconds))} if isinstance(error, Throttled) else {}


def as_json(value: Any, status: int = 200) -> Response:
    """An answer with a JSON value."""
    return Response(dumps(value), status, media_type="application/json")


def named(segment: str) -> str:
    """What a *segment* of a path says; `ApiError` 400 where it is no UTF-8, percent-encoded or not, or too long."""
    try:
        text = unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeError:
        raise ApiError(400, f"not percent-encoded UTF-8: {segment!r}") from None
    if len(text) > MAX_NAME:
        raise ApiError(400, f"a name in a path has at most {MAX_NAME} characters")
    return text


def caller_of(request: Request) -> RestCaller:
    """Who makes a request."""
    return RestCaller(bearer_token(request.headers.get("authorization")), network_of(request))


async def on_disk(bus: Bus) -> None:
    """Wait until everything that was said so far is on disk; `OutcomeUnknown` where the disk fails meanwhile."""
    done, doubts = anyio.Event(), list[bool]()
    ledger = bus.ledger

    def doubt() -> None:
        doubts.append(True)
        done.set()

    ledger.when_synced(ledger.next_seq - 1, done.set, doubt)
    await done.wait()
    if doubts:
        raise OutcomeUnknown(f"the log cannot be written: {ledger.failing}")
