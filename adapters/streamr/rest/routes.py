"""Streamr's REST interface: what clients need beside the WebSocket.

Ids of streams come percent-encoded or with bare slashes; the application routes on the path as it was sent, so an
encoded slash ends nothing. A path that ends in a word is the word's, whatever streams there are: nobody takes an
address away from others by giving a stream a name. Refusals are `{"code", "message"}`, as the reference has them.
Pages of other origins are let in as on the WebSocket, by `auth.origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import APIRouter, Request, Response

from adapters.streamr.wire.ids import NAME
from gateway.core.jsontext import loads
from gateway.http.bodies import network_of, read_body
from gateway.http.paced import paced_response, run_in_turn

from . import data_routes
from .core_api import ApiError, CoreApi
from .data_api import DataApi
from .responses import HEAD, Handler, HeadRoute, Running, as_json, caller_of, explain, guarded, named, on_disk
from .stream_management import StreamManagement

if TYPE_CHECKING:
    from adapters.streamr.parts import Parts
    from gateway.core.bus import Bus

PREFIX = "/api/v1"
JSON = "application/json"
MAX_BODY = 1 << 16  # bytes; a login or a stream takes some hundred
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]

CODES = {
    400: "BAD_REQUEST",
    401: "NOT_AUTHENTICATED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    408: "TIMEOUT",
    413: "TOO_LARGE",
    414: "URI_TOO_LONG",
    422: "VALIDATION_ERROR",
    429: "TOO_MANY_REQUESTS",
    500: "INTERNAL_ERROR",
    503: "UNAVAILABLE",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": HTTPStatus(status).phrase, "content": {"application/json": {}}} for status in CODES
}


class Call(NamedTuple):
    """A row of the table of calls: the core_api's method and what it *takes*, in order, out of the request."""

    method: str
    path: str
    answer: Callable[..., Any]
    takes: tuple[str, ...]
    summary: str
    status: int = 200


# fmt: off
STREAM = "/streams/{stream:path}"
CALLS = [
    Call("POST",   "/login/challenge/{address}", CoreApi.challenge, ("address",), "A text for an address to sign."),
    Call("POST",   "/login/response", CoreApi.login, ("fields",), "A session token for a signed challenge."),
    Call("POST",   "/login/apikey", CoreApi.login_by_key, ("fields",), "A session token for an API key."),
    Call("POST",   "/login/password", CoreApi.login_by_password, (), "There are no passwords."),
    Call("POST",   "/logout", CoreApi.logout, ("caller",), "End a session.", 204),
    Call("GET",    "/users/me", CoreApi.user, ("caller",), "Who asks."),
    Call("GET",    "/streams", CoreApi.streams, ("caller", "query"), "The streams that exist."),
    Call("POST",   "/streams", StreamManagement.create, ("caller", "fields"), "Make a stream exist."),
    Call("GET",    STREAM + "/publishers", CoreApi.publishers, ("caller", "stream"), "Who publishes on a stream."),
    Call("GET",    STREAM + "/publisher/{address}", CoreApi.publisher, ("caller", "stream", "address"),
         "Whether an address publishes on a stream."),
    Call("GET",    STREAM + "/subscribers", CoreApi.subscribers, ("caller", "stream"), "Who reads a stream."),
    Call("GET",    STREAM + "/subscriber/{address}", CoreApi.subscriber, ("caller", "stream", "address"),
         "Whether an address may read a stream."),
    Call("GET",    STREAM + "/validation", CoreApi.validation, ("caller", "stream"),
         "What has to be known of a stream to check its messages."),
    Call("POST",   STREAM + "/fields", StreamManagement.set_fields, ("caller", "stream", "items"),
         "Say which fields the messages of a stream have."),
    Call("GET",    STREAM + "/detectFields", StreamManagement.detect_fields, ("caller", "stream"),
         "A stream with the fields of its newest message."),
    Call("GET",    STREAM + "/permissions/me", CoreApi.my_permissions, ("caller", "stream"),
         "What the user may do on a stream."),
    Call("GET",    STREAM + "/permissions", StreamManagement.permissions, ("caller", "stream"),
         "What users may do on a stream."),
    Call("POST",   STREAM + "/permissions", StreamManagement.grant, ("caller", "stream", "fields"),
         "Give a permission."),
    Call("DELETE", STREAM + "/permissions/{permission}", StreamManagement.revoke, ("caller", "stream", "permission"),
         "Take a permission back.", 204),
    Call("GET",    STREAM + "/storageNodes", CoreApi.storage_nodes, ("caller", "stream"), "Who keeps a stream."),
    Call("POST",   STREAM + "/storageNodes", StreamManagement.store, ("caller", "stream", "fields"),
         "Let a stream be kept; every stream is."),
    Call("GET",    "/storageNodes/{address}/streams", CoreApi.kept, ("caller", "address"),
         "The streams that are kept."),
    Call("GET",    STREAM, CoreApi.stream, ("caller", "stream"), "A stream."),
    Call("PUT",    STREAM, StreamManagement.update, ("caller", "stream", "fields"), "Say something else of a stream."),
    Call("DELETE", STREAM, StreamManagement.delete, ("caller", "stream"), "Forget what was said of a stream.", 204),
]
# fmt: on
BODIES = {"fields": dict, "items": list}  # what kind of JSON value a body is
QUERY = ("name", "search", "max", "offset")  # of the list of streams


def router(started: Callable[[], Parts]) -> APIRouter:
    """The routes below `/api/v1`; what is not there is refused in the same form.

    Routes are made before the adapter starts, so each request asks for the *started* parts.
    """

    @cache
    def running() -> Running:
        parts = started()
        core_api = StreamManagement(parts)
        return Running(parts, core_api, DataApi(parts, core_api))

    class Route(HeadRoute):
        def get_route_handler(self) -> Handler:
            return guarded(running, super().get_route_handler(), explain, _error_body)

    routes = APIRouter(prefix=PREFIX, route_class=Route, tags=[NAME], responses=REFUSALS)
    routes.include_router(data_routes.router(running))
    for call in CALLS:
        routes.add_api_route(
            call.path,
            _endpoint(running, call),
            methods=[call.method],
            summary=call.summary,
            status_code=call.status,
            response_class=Response,
            responses={} if call.status == 204 else {call.status: {"content": {"application/json": {}}}},
            openapi_extra=_openapi(call),
        )

    @routes.options("/{path:path}", include_in_schema=False)
    async def preflight(path: str) -> Response:  # noqa: ARG001  (whatever it is)
        return Response(status_code=204)

    async def elsewhere(request: Request) -> Response:
        raise ApiError(
            404, f"there is nothing for {request.method} at {request.url.path}; GET /docs says what there is"
        )

    routes.add_api_route("/{path:path}", elsewhere, methods=METHODS, include_in_schema=False)
    return routes


def _endpoint(running: Callable[[], Running], call: Call) -> Handler:
    """Answers a request by what the core_api says, once that is on disk."""

    async def endpoint(request: Request) -> Response:
        parts, core_api, _ = running()
        bus = parts.context.bus
        given: dict[str, Any] = {name: named(value) for name, value in request.path_params.items()}
        given |= {"caller": caller_of(request), "query": request.query_params}
        for name in BODIES.keys() & set(call.takes):
            if "caller" in call.takes:
                core_api.admit_change(given["caller"], given.get("stream"))
            given[name] = await _value(bus, request, BODIES[name])
        before = bus.ledger.next_seq
        answer = call.answer(core_api, *(given[name] for name in call.takes))
        if isinstance(answer, Iterator):
            return await _in_slices(parts, core_api, request, answer)
        if bus.ledger.next_seq > before:
            await on_disk(bus)
        return Response(status_code=204) if call.status == 204 else as_json(answer, call.status)

    return endpoint


async def _in_slices(parts: Parts, core_api: CoreApi, request: Request, slices: Iterator[bytes]) -> Response:
    """A long answer, at the pace of all of them (`paced_response`), while the caller's token is worth something."""
    scheduler, network, read_pacer = (
        parts.context.services.answer_scheduler,
        network_of(request),
        parts.context.bus.read_pacer,
    )
    if request.method == HEAD:  # its length is told
        made = list[bytes]()
        while (part := await run_in_turn(scheduler, network, partial(next, slices, None))) is not None:
            made.append(part)
        return Response(b"".join(made), media_type=JSON)
    budget, ask = None if read_pacer is None else read_pacer.budget, partial(core_api.authenticate, caller_of(request))
    return await paced_response(scheduler, budget, network, slices, JSON, ask)


def _openapi(call: Call) -> dict[str, Any]:
    """The parameters and the body, for /docs."""
    paths = [part.strip("{}").partition(":")[0] for part in call.path.split("/") if part.startswith("{")]
    found = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in paths]
    if "query" in call.takes:
        found += [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in QUERY]
    shapes = {dict: {"type": "object"}, list: {"type": "array", "items": {}}}
    bodies = [{"schema": shapes[BODIES[name]]} for name in call.takes if name in BODIES]
    body = {"requestBody": {"required": True, "content": {"application/json": bodies[0]}}} if bodies else {}
    return {"parameters": found, **body}


def _error_body(error: Exception, status: int, message: str) -> dict[str, str]:
    return {"code": getattr(error, "code", None) or CODES[status], "message": message}


async def _value(bus: Bus, request: Request, kind: type) -> Any:
    """The body as a JSON value, whatever its type is said to be: clients also send it as plain text."""
    read_pacer = bus.read_pacer
    try:
        async with read_body(request, MAX_BODY, read_pacer) as body:
            value = loads(body)
    except ValueError as error:
        if read_pacer is not None:
            read_pacer.charge_malformed_body(network_of(request), len(body))
        raise ApiError(400, f"not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ApiError(400, f"expected a JSON {'object' if kind is dict else 'array'}")
    return value
