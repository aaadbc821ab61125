"""The broker's data API over HTTP.

Messages are read as the client takes the answer, in the turns that all long answers share (`gateway.http.paced`), so an
answer of any length takes the memory of one piece. Errors are `{"error"}`, as those of the reference's broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.refusals import Unauthenticated
from adapters.streamr.wire.validation_errors import InvalidMessage
from gateway.access.authorization import bearer_token
from gateway.core.errors import Forbidden, UnknownChannel
from gateway.core.jsontext import dumps
from gateway.core.message import Message
from gateway.http.bodies import read_body
from gateway.http.problems import Handler
from gateway.http.rest_helpers import wait_until_synced
from gateway.http.routing import Route, parameters, register

from .data_api import BadQuery, Format, Metadata
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

if TYPE_CHECKING:
    from adapters.streamr.message_forms import Forms

MAX_BODY = 1 << 20  # bytes of a message, as in the reference's broker
JSON = "application/json"

MALFORMED_HEADER = 'Authorization header malformed. Should be of form "Bearer session-token".'
DENIED = "Authentication failed."
STREAM = "/streams/{stream:path}/"
PARTITION = STREAM + "data/partitions/{partition}/"


ERROR: dict[str, Any] = {"content": {JSON: {}}}
RESPONSES: dict[int | str, dict[str, Any]] = dict.fromkeys(
    (400, 401, 403, 404, 408, 413, 414, 422, 429, 500, 503), ERROR
)


class _Endpoints:
    """Answers the requests of the data API. Methods have no docstrings, as FastAPI would show them in /docs."""

    def __init__(self, running: Callable[[], Running]) -> None:
        self._running = running

    async def produce(self, request: Request) -> Response:
        parts, _, data = self._running()
        bus, stream = parts.context.bus, path_name(request, "stream")
        data.admit(caller_of(request), stream, request.query_params)
        async with read_body(request, MAX_BODY, bus.read_pacer, (InvalidMessage, StreamrError, BadQuery)) as body:
            data.produce(caller_of(request), stream, request.query_params, body)
        await wait_until_synced(bus.ledger, bus.ledger.next_seq - 1)
        return Response()

    async def query(self, request: Request) -> Response:
        data = self._running().data
        kind = request.url.path.rpartition("/")[2]  # `QUERIES` has the last segments of the paths
        form, show = data.shower(request.query_params)
        found = data.find(caller_of(request), *_partition(request), kind, request.query_params)
        if request.method == HEAD:
            return Response(media_type=form.media_type)
        return await self._answer(request, _slices(found, show, form), form.media_type)

    async def metadata(self, request: Request) -> Response:
        parts, _, data = self._running()
        found = data.all(caller_of(request), *_partition(request))
        return await self._answer(request, _counted(parts.forms, found), JSON)

    async def storage(self, request: Request) -> Response:
        self._running().data.all(caller_of(request), *_partition(request))
        return as_json({})

    async def _answer(self, request: Request, slices: Iterator[bytes], media_type: str) -> Response:
        parts, _, data = self._running()
        ask = partial(data.authorize_history, caller_of(request), *_partition(request))
        return await paced_answer(parts, request, slices, media_type, ask)


def _route(method: str, path: str, handler: Callable[..., Any], query: str, summary: str) -> Route:
    """A row of the table; *query* are its parameters, required ones with a star."""
    body = {"requestBody": {"required": True, "content": {JSON: {"schema": {}}}}} if method == "POST" else {}
    return Route(method, path, handler, more={"parameters": parameters(path, query)} | body, summary=summary)


# fmt: off
SHAPE = "format version "
ROUTES = (
    _route("POST", STREAM + "data", _Endpoints.produce,
           "ts seq prev_ts prev_seq pkey address msgChainId signatureType signature", "Publish a message on a stream."),
    _route("GET", PARTITION + "last", _Endpoints.query, SHAPE + "count",
           "The newest messages of a stream partition."),
    _route("GET", PARTITION + "from", _Endpoints.query,
           SHAPE + "*fromTimestamp fromSequenceNumber publisherId",
           "The messages of a stream partition since a timestamp."),
    _route("GET", PARTITION + "range", _Endpoints.query,
           SHAPE + "*fromTimestamp fromSequenceNumber *toTimestamp toSequenceNumber publisherId msgChainId",
           "The messages of a stream partition between two timestamps."),
    _route("GET", STREAM + "metadata/partitions/{partition}", _Endpoints.metadata, "",
           "The size of what is stored of a stream partition."),
    _route("GET", STREAM + "storage/partitions/{partition}", _Endpoints.storage, "",
           "Whether a stream partition is stored."),
)
# fmt: on


def router(running: Callable[[], Running]) -> APIRouter:
    """The routes of the data API."""

    class DataRoute(HeadRoute):
        def get_route_handler(self) -> Handler:
            return with_error_handling(running, _checked(super().get_route_handler()), _explain, _error_body)

    routes, endpoints = APIRouter(route_class=DataRoute, tags=[NAME], responses=RESPONSES), _Endpoints(running)
    for route in ROUTES:
        register(routes, route, getattr(endpoints, route.handler.__name__), {200: {"content": _content(route)}})
    return routes


def _content(route: Route) -> dict[str, Any]:
    """The media types of the answer, for /docs."""
    if route.handler is _Endpoints.produce:
        return {}
    return {JSON: {}} | ({"text/plain": {}} if route.handler is _Endpoints.query else {})


def _partition(request: Request) -> tuple[str, str]:
    """The stream and the partition in the path."""
    return path_name(request, "stream"), path_name(request, "partition")


def _checked(handle: Handler) -> Handler:
    """Refuse a header that holds no token."""

    async def answer(request: Request) -> Response:
        header = request.headers.get("authorization")
        if header is not None and bearer_token(header) is None:
            raise BadQuery(MALFORMED_HEADER)
        return await handle(request)

    return answer


# Long answers


def _slices(found: Iterator[Message | None], show: Callable[[Message], bytes | None], form: Format) -> Iterator[bytes]:
    """The slices of an answer with the *found* messages that *show* can show."""
    some, separator = bytearray(form.before), b""
    for message in found:
        if message is None:
            yield bytes(some)
            some.clear()
        elif (text := show(message)) is not None:
            some += separator + text
            separator = form.between
    yield bytes(some + form.behind)


def _counted(forms: Forms, messages: Iterator[Message | None]) -> Iterator[bytes]:
    """The metadata of *messages*, after as many empty slices as it takes to read them."""
    found = Metadata()
    for message in messages:
        if message is None:
            yield b""
        elif (shown := forms.stream_message(message)) is not None:
            found = found.with_(shown)
    yield dumps(found.shown())


# Errors


def _explain(error: Exception) -> tuple[int, str]:
    """The status and the text for an *error*, as the reference's broker has them."""
    match error:
        case Unauthenticated():
            return 401, DENIED  # clients log in again on this status only
        case Forbidden():
            return 403, DENIED
        case UnknownChannel():
            return 404, f"Stream {error} not found."
        case StreamrError() | InvalidMessage() | BadQuery():
            return 400, str(error)
        case _:
            return explain(error)


def _error_body(_error: Exception, _status: int, message: str) -> dict[str, str]:
    return {"error": message}
