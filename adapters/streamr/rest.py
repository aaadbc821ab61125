"""The part of Streamr's REST interface that clients need to log in, publish and believe what they read.

Ids of streams come percent-encoded or with bare slashes; the application routes on the path as it was sent, so an
encoded slash ends nothing. Refusals are `{"code", "message"}`, as the reference has them. Pages of other origins
are let in as on the WebSocket, by `auth.origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from gateway.auth import bearer
from gateway.errors import RequestError
from gateway.jsontext import dumps, loads

from .desk import Desk, Refused, Visitor

if TYPE_CHECKING:
    from .adapter import StreamrAdapter

MAX_BODY = 1 << 16  # bytes; a login or a stream takes some hundred

CODES = {400: "BAD_REQUEST", 401: "NOT_AUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 413: "TOO_LARGE"}
REFUSALS: dict[int | str, dict[str, Any]] = {status: {"description": HTTPStatus(status).phrase} for status in CODES}
CORS = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Streamr-Client",
    "Vary": "Origin",
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
STREAM = "/streams/{stream:path}"


def router(adapter: StreamrAdapter) -> APIRouter:
    """The routes below `/api/v1`; a path that ends in a word comes before the bare stream."""
    desk = Desk(adapter)

    class Route(APIRoute):
        def get_route_handler(self) -> Handler:
            return _answering(desk, super().get_route_handler())

    routes = APIRouter(prefix="/api/v1", route_class=Route, tags=["streamr"], responses=REFUSALS)
    _add_users(routes, desk)
    _add_streams(routes, desk)

    @routes.options("/{path:path}", include_in_schema=False)
    async def preflight(path: str) -> Response:  # noqa: ARG001  (whatever it is)
        return Response(status_code=204)

    return routes


def _add_users(routes: APIRouter, desk: Desk) -> None:
    @routes.post("/login/challenge/{address}", summary="A text for the owner of an address to sign.")
    async def challenge(address: str) -> Response:
        return _json(desk.challenge(unquote(address)))

    @routes.post("/login/response", summary="A session token for a signed challenge.")
    async def response(request: Request) -> Response:
        return _json(desk.login(await _fields(request)))

    @routes.post("/logout", status_code=204, summary="End a session.")
    async def logout(request: Request) -> Response:
        desk.logout(_visitor(request))
        return Response(status_code=204)

    @routes.get("/users/me", summary="Who asks.")
    async def user(request: Request) -> Response:
        return _json(desk.user(_visitor(request)))


def _add_streams(routes: APIRouter, desk: Desk) -> None:
    @routes.get("/streams", summary="The streams that exist.")
    async def streams(request: Request, name: str | None = None) -> Response:
        return _json(desk.streams(_visitor(request), name))

    @routes.post("/streams", summary="Make a stream exist.")
    async def create(request: Request) -> Response:
        return _json(desk.create(_visitor(request), await _fields(request)))

    @routes.get(STREAM + "/publishers", summary="The addresses that publish on a stream.")
    async def publishers(request: Request, stream: str) -> Response:
        return _json(desk.publishers(_visitor(request), unquote(stream)))

    @routes.get(STREAM + "/publisher/{address}", summary="Whether an address publishes on a stream.")
    async def publisher(request: Request, stream: str, address: str) -> Response:
        return _json(desk.publisher(_visitor(request), unquote(stream), unquote(address)))

    @routes.get(STREAM + "/subscriber/{address}", summary="Whether an address may read a stream.")
    async def subscriber(request: Request, stream: str, address: str) -> Response:
        return _json(desk.subscriber(_visitor(request), unquote(stream), unquote(address)))

    @routes.get(STREAM + "/validation", summary="What has to be known of a stream to check its messages.")
    async def validation(request: Request, stream: str) -> Response:
        return _json(desk.validation(_visitor(request), unquote(stream)))

    @routes.get(STREAM + "/permissions/me", summary="What the user may do on a stream.")
    async def permissions(request: Request, stream: str) -> Response:
        return _json(desk.permissions(_visitor(request), unquote(stream)))

    @routes.get(STREAM, summary="A stream.")
    async def stream(request: Request, stream: str) -> Response:
        return _json(desk.stream(_visitor(request), unquote(stream)))


def _answering(desk: Desk, handle: Handler) -> Handler:
    """Turn refusals into answers, and let pages that are welcome read them."""

    async def answer(request: Request) -> Response:
        welcome: dict[str, str] = {}
        try:
            origin = request.headers.get("origin")
            desk.admit(origin, request.headers.get("host"))
            welcome = CORS | {"Access-Control-Allow-Origin": origin} if origin is not None else {}
            response = await handle(request)
        except Refused as error:
            response = _refusal(error.status, str(error))
        except RequestError as error:
            response = _refusal(503, str(error))
        response.headers.update(welcome)
        return response

    return answer


def _refusal(status: int, message: str) -> Response:
    return _json({"code": CODES.get(status, "UNAVAILABLE"), "message": message}, status)


def _json(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, media_type="application/json")


def _visitor(request: Request) -> Visitor:
    return Visitor(bearer(request.headers.get("authorization")), request.client.host if request.client else "")


async def _fields(request: Request) -> dict[str, Any]:
    """The body as a JSON object, whatever its type is said to be: clients also send it as plain text."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise Refused(413, f"more than {MAX_BODY} bytes")
    try:
        fields = loads(bytes(body))
    except ValueError as error:
        raise Refused(400, f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refused(400, "expected a JSON object")
    return fields
