"""The broker's data API over HTTP: messages said by a request, and what is stored as a stream of bytes.

An answer of any length takes the memory of one piece: messages are read as the client takes them, in the turns that all
long answers share (`gateway.http.paced`). Refusals are `{"error"}`, as the reference's broker has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import APIRouter, Request, Response

from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.ids import NAME
from adapters.streamr.wire.invalid import Invalid
from adapters.streamr.wire.refusals import Unauthenticated
from gateway.access.auth import bearer_token
from gateway.core.errors import Forbidden, UnknownChannel
from gateway.core.jsontext import dumps
from gateway.core.message import Message
from gateway.http.bodies import read_body
from gateway.http.paced import paced_response

from .data_api import BadQuery, Format, Metadata
from .responses import HEAD, Handler, HeadRoute, Running, as_json, caller_of, explain, guarded, named, on_disk

if TYPE_CHECKING:
    from adapters.streamr.forms import Forms

MAX_BODY = 1 << 20  # bytes of a message, as in the reference's broker
JSON = "application/json"

MALFORMED_HEADER = 'Authorization header malformed. Should be of form "Bearer session-token".'
DENIED = "Authentication failed."
STREAM = "/streams/{stream:path}/"
PARTITION = STREAM + "data/partitions/{partition}/"


class Call(NamedTuple):
    """A row of the table of calls; *query* are its parameters, those that it must have with a star."""

    method: str
    path: str
    name: str
    query: str
    summary: str


# fmt: off
SHAPE = "format version "
CALLS = (
    Call("POST", STREAM + "data", "produce",
         "ts seq prev_ts prev_seq pkey address msgChainId signatureType signature", "Say something on a stream."),
    Call("GET", PARTITION + "last", "last", SHAPE + "count", "The newest messages of a stream partition."),
    Call("GET", PARTITION + "from", "from", SHAPE + "*fromTimestamp fromSequenceNumber publisherId",
         "The messages of a stream partition since a timestamp."),
    Call("GET", PARTITION + "range", "range",
         SHAPE + "*fromTimestamp fromSequenceNumber *toTimestamp toSequenceNumber publisherId msgChainId",
         "The messages of a stream partition between two timestamps."),
    Call("GET", STREAM + "metadata/partitions/{partition}", "metadata", "",
         "How much is stored of a stream partition."),
    Call("GET", STREAM + "storage/partitions/{partition}", "storage", "", "Whether a stream partition is stored."),
)
# fmt: on
ERROR: dict[str, Any] = {"content": {JSON: {}}}
RESPONSES: dict[int | str, dict[str, Any]] = dict.fromkeys(
    (400, 401, 403, 404, 408, 413, 414, 422, 429, 500, 503), ERROR
)


def router(running: Callable[[], Running]) -> APIRouter:
    """All of it."""

    class Route(HeadRoute):
        def get_route_handler(self) -> Handler:
            return guarded(running, _checked(super().get_route_handler()), _explain, _error_body)

    routes = APIRouter(route_class=Route, tags=[NAME], responses=RESPONSES)
    for call in CALLS:
        routes.add_api_route(
            call.path,
            _endpoint(running, call.name),
            methods=[call.method],
            summary=call.summary,
            response_class=Response,
            responses={200: {"content": _answers(call)}},
            openapi_extra=_openapi(call),
        )
    return routes


def _endpoint(running: Callable[[], Running], name: str) -> Handler:
    async def produce(request: Request) -> Response:
        parts, _, data = running()
        caller, stream = caller_of(request), named(request.path_params["stream"])
        data.admit(caller, stream, request.query_params)
        read_pacer = parts.context.bus.read_pacer
        async with read_body(request, MAX_BODY, read_pacer) as body:
            try:
                data.produce(caller, stream, request.query_params, body)
            except (Invalid, StreamrError, BadQuery):
                if read_pacer is not None:
                    read_pacer.charge_malformed_body(caller.network, len(body))
                raise
        await on_disk(parts.context.bus)
        return Response()

    async def query(request: Request) -> Response:
        data = running().data
        form, show = data.shower(request.query_params)
        found = data.find(caller_of(request), *_place(request), name, request.query_params)
        if request.method == HEAD:
            return Response(media_type=form.media_type)
        return await answered(request, _slices(found, show, form), form.media_type)

    async def metadata(request: Request) -> Response:
        found = running().data.all(caller_of(request), *_place(request))
        return await answered(request, _counted(running().parts.forms, found), JSON)

    async def answered(request: Request, slices: Iterator[bytes], media_type: str) -> Response:
        parts, _, data = running()
        read_pacer, caller = parts.context.bus.read_pacer, caller_of(request)
        budget = None if read_pacer is None else read_pacer.budget
        ask = partial(data.authorize_history, caller, *_place(request))
        return await paced_response(
            parts.context.services.answer_scheduler, budget, caller.network, slices, media_type, ask
        )

    async def storage(request: Request) -> Response:
        running().data.all(caller_of(request), *_place(request))
        return as_json({})

    return {"produce": produce, "metadata": metadata, "storage": storage}.get(name, query)


def _place(request: Request) -> tuple[str, str]:
    """The stream and the partition in the path."""
    return named(request.path_params["stream"]), named(request.path_params["partition"])


def _checked(handle: Handler) -> Handler:
    """Refuse a header that names no token."""

    async def answer(request: Request) -> Response:
        header = request.headers.get("authorization")
        if header is not None and bearer_token(header) is None:
            raise BadQuery(MALFORMED_HEADER)
        return await handle(request)

    return answer


# Long answers


def _slices(found: Iterator[Message | None], show: Callable[[Message], bytes | None], form: Format) -> Iterator[bytes]:
    """The whole answer: what is *found*, as far as it is shown."""
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
    """What is to be said of *messages*, behind as many empty slices as it takes to read them."""
    found = Metadata()
    for message in messages:
        if message is None:
            yield b""
        elif (shown := forms.stream_message(message)) is not None:
            found = found.with_(shown)
    yield dumps(found.shown())


# What is told


def _explain(error: Exception) -> tuple[int, str]:
    """The status and the text, as the reference's broker has them."""
    match error:
        case Unauthenticated():
            return 401, DENIED  # clients log in again on this status, and only on it
        case Forbidden():
            return 403, DENIED
        case UnknownChannel():
            return 404, f"Stream {error} not found."
        case StreamrError() | Invalid() | BadQuery():
            return 400, str(error)
        case _:
            return explain(error)


def _error_body(_error: Exception, _status: int, message: str) -> dict[str, str]:
    return {"error": message}


def _answers(call: Call) -> dict[str, Any]:
    if call.name == "produce":
        return {}
    return {JSON: {}} | ({"text/plain": {}} if "format" in call.query else {})


def _openapi(call: Call) -> dict[str, Any]:
    """The parameters and the body, for /docs."""
    paths = [(name, "path", True) for name in ("stream", "partition") if f"{{{name}" in call.path]
    queries = [(name.lstrip("*"), "query", name.startswith("*")) for name in call.query.split()]
    parameters = [
        {"name": name, "in": where, "required": required, "schema": {"type": "string"}}
        for name, where, required in (*paths, *queries)
    ]
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}}
    return {"parameters": parameters} | (body if call.method == "POST" else {})
