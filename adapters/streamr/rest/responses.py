"""What all responses of Streamr's REST interface have in common: callers, origins, errors and long answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from adapters.streamr.wire.checks import MAX_NAME
from adapters.streamr.wire.ids import NAME
from gateway.access.authorization import bearer_token
from gateway.core.errors import INTERNAL_ERROR, RequestError, Throttled
from gateway.core.jsontext import dumps
from gateway.http.bodies import BodyRefused, network_of
from gateway.http.paced import paced_response
from gateway.http.problems import Handler
from gateway.http.rest_helpers import BODY_CUT_OFF, decode_segment, report_bug, retry_after

from .core_api import ApiError, RestCaller

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts

    from .data_api import DataApi
    from .stream_management import StreamManagement

MAX_TARGET = 8_192  # bytes of a path and its query: a stream's name in percent-encoded UTF-8 has at most 6,144
CORS = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Streamr-Client",
    "Vary": "Origin",
}

HEAD, GET = "HEAD", "GET"
Explain = Callable[[Exception], tuple[int, str]]  # the status and the text of an error
ErrorBody = Callable[[Exception, int, str], Any]  # the JSON value that describes it


class Running(NamedTuple):
    """What answers requests once the adapter has started."""

    parts: StreamrParts
    core_api: StreamManagement
    data: DataApi


class HeadRoute(APIRoute):
    """A route for GET that also answers HEAD, as those of the reference do; /docs does not list that."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the route matches, taking HEAD for GET."""
        return super().matches({**scope, "method": GET} if scope.get("method") == HEAD else scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["method"] == HEAD and GET in (self.methods or ()):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)


def with_error_handling(
    running: Callable[[], Running], handle: Handler, explain: Explain, error_body: ErrorBody
) -> Handler:
    """A handler that answers the errors of *handle*, and lets pages of allowed origins read every answer."""

    async def answer(request: Request) -> Response:
        cors: dict[str, str] = {}
        parts, core_api, _ = running()
        try:
            origin = request.headers.get("origin")
            core_api.check_origin(origin, request.headers.get("host"))
            cors = CORS | {"Access-Control-Allow-Origin": origin} if origin is not None else {}
            _check_target(request)
            core_api.pace(caller_of(request))
            response = await handle(request)
        except Exception as error:
            status, message = explain(error)
            if status == 500:
                report_bug(error, request, parts.context.services.metrics)
            details = {"method": request.method, "path": request.url.path, "why": message}
            parts.context.services.metrics.refused(NAME, str(status), network=network_of(request), **details)
            response = as_json(error_body(error, status, message), status)
            response.headers.update(_headers(error))
            error.__traceback__ = None  # as in `gateway.http.problems`
        response.headers.update(cors)
        if request.method == HEAD:
            response.body = b""
        return response

    return answer


def _check_target(request: Request) -> None:
    """Raise `ApiError` 414 if the path and the query together are longer than `MAX_TARGET`."""
    if len(request.scope.get("raw_path") or request.scope["path"]) + len(request.scope["query_string"]) > MAX_TARGET:
        raise ApiError(414, f"a path and its query have at most {MAX_TARGET} bytes")


def explain(error: Exception) -> tuple[int, str]:
    """The status and the text for an *error*; a bug is not described."""
    match error:
        case ApiError() | BodyRefused():
            return error.status, str(error)
        case Throttled():
            return 429, str(error)
        case RequestError():
            return 503, str(error)
        case ClientDisconnect():
            return 400, BODY_CUT_OFF
        case _:
            return 500, INTERNAL_ERROR


def _headers(error: Exception) -> Mapping[str, str]:
    if isinstance(error, BodyRefused):
        return error.headers
    return retry_after(error) if isinstance(error, Throttled) else {}


def as_json(value: Any, status: int = 200) -> Response:
    """A response with *value* as JSON."""
    return Response(dumps(value), status, media_type="application/json")


def path_name(request: Request, parameter: str) -> str:
    """The name in a path's *parameter*; raises `ApiError` 400 if it is not percent-encoded UTF-8, or too long."""
    segment: str = request.path_params[parameter]
    try:
        text = decode_segment(segment)
    except UnicodeError:
        raise ApiError(400, f"not percent-encoded UTF-8: {segment!r}") from None
    if len(text) > MAX_NAME:
        raise ApiError(400, f"a name in a path has at most {MAX_NAME} characters")
    return text


async def paced_answer(
    parts: StreamrParts, request: Request, slices: Iterator[bytes], media_type: str, ask: Callable[[], object]
) -> Response:
    """A long answer, made as its caller reads it and while *ask* does not raise: see `gateway.http.paced`."""
    read_pacer, scheduler = parts.context.bus.read_pacer, parts.context.services.answer_scheduler
    budget = None if read_pacer is None else read_pacer.budget
    return await paced_response(scheduler, budget, network_of(request), slices, media_type, ask)


def caller_of(request: Request) -> RestCaller:
    """The caller of *request*."""
    return RestCaller(bearer_token(request.headers.get("authorization")), network_of(request))
