"""The routes of Streamr's REST interface, which clients need beside the WebSocket.

Stream ids come percent-encoded or with bare slashes; the application routes on the path as it was sent, so an encoded
slash separates nothing. A path that ends like one of the routes belongs to that route: no stream takes it over by its
name. Errors are `{"code", "message"}`, as in the reference. Pages of other origins are allowed as on the WebSocket, by
`auth.origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from http import HTTPStatus
from inspect import signature
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import APIRouter, Request, Response

from adapters.streamr.wire.ids import NAME
from gateway.core.jsontext import loads
from gateway.http.bodies import network_of, read_body
from gateway.http.paced import run_in_turn
from gateway.http.problems import Handler
from gateway.http.rest_helpers import wait_until_synced
from gateway.http.routing import Route, parameters, register

from . import data_routes
from .core_api import ApiError, CoreApi
from .data_api import DataApi
from .responses import (
    HEAD,
    HeadRoute,
    Running,
    as_json,
    caller_of,
    explain,
    paced_answer,
    path_name,
    with_error_handling,
)
from .stream_management import StreamManagement

if TYPE_CHECKING:
    from adapters.streamr.shared_parts import StreamrParts
    from gateway.core.read_pacer import ReadPacer

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
ERROR = {
    "type": "object",
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    "required": ["code", "message"],
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": ERROR}}} for status in CODES
}


BODIES = {"fields": dict, "items": list}  # the kind of JSON value that a body is
NOT_WRITTEN = "this holds from now on, but cannot be written to disk; that is tried again each second"
QUERY = "name search max offset"  # parameters of the list of streams


def _route(method: str, path: str, handler: Callable[..., Any], summary: str, status: int = 200) -> Route:
    """A row of the table; the *handler*'s arguments are taken from the request by their names (`_arguments`)."""
    taken = _arguments(handler)
    more: dict[str, Any] = {"parameters": parameters(path, QUERY if "query" in taken else "")}
    shapes = {dict: {"type": "object"}, list: {"type": "array", "items": {}}}
    for name in BODIES.keys() & set(taken):
        more["requestBody"] = {"required": True, "content": {JSON: {"schema": shapes[BODIES[name]]}}}
    return Route(method, path, handler, status, more=more, summary=summary)


def _arguments(handler: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a method's arguments: `caller`, `query`, `fields`, `items`, or a parameter of the path."""
    _, *names = signature(handler).parameters
    return tuple(names)


# fmt: off
STREAM = "/streams/{stream:path}"
ROUTES = [
    _route("POST",   "/login/challenge/{address}", CoreApi.challenge, "A challenge for an address to sign."),
    _route("POST",   "/login/response", CoreApi.login, "A session token for a signed challenge."),
    _route("POST",   "/login/apikey", CoreApi.login_by_key, "A session token for an API key."),
    _route("POST",   "/login/password", CoreApi.login_by_password, "There are no passwords."),
    _route("POST",   "/logout", CoreApi.logout, "End a session.", 204),
    _route("GET",    "/users/me", CoreApi.user, "The user of the token."),
    _route("GET",    "/streams", CoreApi.streams, "The streams that exist."),
    _route("POST",   "/streams", StreamManagement.create, "Create a stream."),
    _route("GET",    STREAM + "/publishers", CoreApi.publishers, "The publishers of a stream."),
    _route("GET",    STREAM + "/publisher/{address}", CoreApi.publisher,
         "Whether an address is a publisher on a stream."),
    _route("GET",    STREAM + "/subscribers", CoreApi.subscribers, "The subscribers of a stream."),
    _route("GET",    STREAM + "/subscriber/{address}", CoreApi.subscriber,
         "Whether an address may read a stream."),
    _route("GET",    STREAM + "/validation", CoreApi.validation,
         "The rules that a stream's messages are checked by."),
    _route("POST",   STREAM + "/fields", StreamManagement.set_fields,
         "Set the fields of a stream's messages."),
    _route("GET",    STREAM + "/detectFields", StreamManagement.detect_fields,
         "A stream with the fields of its newest message."),
    _route("GET",    STREAM + "/permissions/me", CoreApi.my_permissions,
         "The user's permissions on a stream."),
    _route("GET",    STREAM + "/permissions", StreamManagement.permissions,
         "The permissions on a stream."),
    _route("POST",   STREAM + "/permissions", StreamManagement.grant,
         "Grant a permission."),
    _route("DELETE", STREAM + "/permissions/{permission}", StreamManagement.revoke,
         "Revoke a permission.", 204),
    _route("GET",    STREAM + "/storageNodes", CoreApi.storage_nodes, "The storage nodes of a stream."),
    _route("POST",   STREAM + "/storageNodes", StreamManagement.store,
         "Store a stream; every stream is stored."),
    _route("GET",    "/storageNodes/{address}/streams", CoreApi.stored_streams,
         "The streams that a node stores."),
    _route("GET",    STREAM, CoreApi.stream, "A stream."),
    _route("PUT",    STREAM, StreamManagement.update, "Change a stream's description."),
    _route("DELETE", STREAM, StreamManagement.delete, "Delete a stream's description; its history stays.", 204),
]
# fmt: on


def router(started: Callable[[], StreamrParts]) -> APIRouter:
    """The routes below `/api/v1`; other paths are refused in the same form.

    Routes are made before the adapter starts, so each request asks for the *started* parts.
    """

    @cache
    def running() -> Running:
        parts = started()
        core_api = StreamManagement(parts)
        return Running(parts, core_api, DataApi(parts, core_api))

    class CoreRoute(HeadRoute):
        def get_route_handler(self) -> Handler:
            return with_error_handling(running, super().get_route_handler(), explain, _error_body)

    routes = APIRouter(prefix=PREFIX, route_class=CoreRoute, tags=[NAME], responses=REFUSALS)
    routes.include_router(data_routes.router(running))
    for route in ROUTES:
        content: dict[int | str, dict[str, Any]] = {route.status: {"content": {JSON: {}}}}
        register(routes, route, _endpoint(running, route), {} if route.status == 204 else content)

    @routes.options("/{path:path}", include_in_schema=False)
    async def preflight(path: str) -> Response:  # noqa: ARG001  (any path)
        return Response(status_code=204)

    async def elsewhere(request: Request) -> Response:
        raise ApiError(404, f"there is nothing for {request.method} at {request.url.path}; GET /docs lists all paths")

    routes.add_api_route("/{path:path}", elsewhere, methods=METHODS, include_in_schema=False)
    return routes


class PendingWrite:
    """Something that is being written to a file beside the log."""

    def __init__(self) -> None:
        self._decided = anyio.Event()
        self._written = False

    def decide(self, written: bool) -> None:
        """Tell whether it is on disk, or cannot be written now."""
        self._written = written
        self._decided.set()

    async def wait(self) -> None:
        """Wait until it is on disk; raise `ApiError` if it cannot be written now."""
        await self._decided.wait()
        if not self._written:
            raise ApiError(503, NOT_WRITTEN)


def _endpoint(running: Callable[[], Running], route: Route) -> Handler:
    """An endpoint that answers with what the *route*'s handler returns, once that is on disk."""
    arguments = _arguments(route.handler)

    async def endpoint(request: Request) -> Response:
        parts, core_api, _ = running()
        ledger = parts.context.bus.ledger
        given: dict[str, Any] = {name: path_name(request, name) for name in request.path_params}
        write = PendingWrite()
        given |= {"caller": caller_of(request), "query": request.query_params, "done": write.decide}
        for name in BODIES.keys() & set(arguments):
            if "caller" in arguments:
                core_api.admit_change(given["caller"], given.get("stream"))
            given[name] = await _json_body(request, parts.context.bus.read_pacer, BODIES[name])
        before = ledger.next_seq
        answer = route.handler(core_api, *(given[name] for name in arguments))
        if "done" in arguments:
            await write.wait()
        if isinstance(answer, Iterator):
            return await _in_slices(parts, core_api, request, answer)
        if ledger.next_seq > before:
            await wait_until_synced(ledger, ledger.next_seq - 1)
        return Response(status_code=204) if route.status == 204 else as_json(answer, route.status)

    return endpoint


async def _in_slices(parts: StreamrParts, core_api: CoreApi, request: Request, slices: Iterator[bytes]) -> Response:
    """A long answer, sent while the caller's token is valid; whole for HEAD, which tells its length."""
    if request.method == HEAD:
        scheduler, made = parts.context.services.answer_scheduler, list[bytes]()
        while (part := await run_in_turn(scheduler, network_of(request), partial(next, slices, None))) is not None:
            made.append(part)
        return Response(b"".join(made), media_type=JSON)
    return await paced_answer(parts, request, slices, JSON, partial(core_api.authenticate, caller_of(request)))


def _error_body(error: Exception, status: int, message: str) -> dict[str, str]:
    return {"code": getattr(error, "code", None) or CODES[status], "message": message}


async def _json_body(request: Request, read_pacer: ReadPacer | None, kind: type) -> Any:
    """The body as a JSON value of a *kind*, whatever its media type: clients also send it as plain text."""
    try:
        async with read_body(request, MAX_BODY, read_pacer, (ValueError,)) as body:
            value = loads(body)
    except ValueError as error:
        raise ApiError(400, f"not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ApiError(400, f"expected a JSON {'object' if kind is dict else 'array'}")
    return value
