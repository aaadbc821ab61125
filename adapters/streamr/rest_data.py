"""The broker's data API over HTTP: messages said by a request, and what is stored as a stream of bytes.

An answer of any length takes the memory of one slice: messages are read as the client takes them, and the slices share
the loop with everybody else as those of resends do. Refusals are `{"error"}`, as the reference's broker has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message as Event
from starlette.types import Receive, Scope, Send

from gateway.auth import bearer
from gateway.bodies import body_of
from gateway.errors import Forbidden, RequestError, UnknownChannel
from gateway.message import Message

from .data import BadQuery, Data, Format, Metadata
from .desk import Desk
from .errors import StreamrError
from .ids import NAME
from .publishing import Invalid
from .refusals import Unauthenticated
from .rest_answers import HEAD, Handler, HeadedRoute, answering, as_json, explained, named, on_disk, visitor_of

if TYPE_CHECKING:
    from .adapter import StreamrAdapter

MAX_BODY = 1 << 20  # bytes of a message, as in the reference's broker
CHUNK = 1 << 16  # bytes that are sent at once
MAX_ANSWERS = 256  # long answers under way at once; further ones are asked for again
MAX_ANSWERS_EACH = 32  # those of one network address
STALLED_SECONDS = 60.0  # for a client to take a chunk; then the answer ends where it is

MALFORMED = 'Authorization header malformed. Should be of form "Bearer session-token".'
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
ERROR: dict[str, Any] = {"content": {"application/json": {}}}
RESPONSES: dict[int | str, dict[str, Any]] = dict.fromkeys(
    (400, 401, 403, 404, 408, 413, 414, 422, 429, 500, 503), ERROR
)


def router(adapter: StreamrAdapter, desk: Desk) -> APIRouter:
    """All of it."""
    data, room = Data(adapter, desk), Room()

    class Route(HeadedRoute):
        def get_route_handler(self) -> Handler:
            return answering(adapter, desk, _checked(super().get_route_handler()), _explained, _told)

    routes = APIRouter(route_class=Route, tags=[NAME], responses=RESPONSES)
    for call in CALLS:
        routes.add_api_route(
            call.path,
            _endpoint(adapter, data, room, call.name),
            methods=[call.method],
            summary=call.summary,
            response_class=Response,
            responses={200: {"content": _answers(call)}},
            openapi_extra=_described(call),
        )
    return routes


def _endpoint(adapter: StreamrAdapter, data: Data, room: Room, name: str) -> Handler:
    async def produce(request: Request) -> Response:
        visitor, stream = visitor_of(request), named(request.path_params["stream"])
        data.admit(visitor, stream, request.query_params)
        inflow = adapter.bus.inflow
        async with body_of(request, MAX_BODY, inflow) as body:
            try:
                data.produce(visitor, stream, request.query_params, body)
            except (Invalid, StreamrError, BadQuery):
                if inflow is not None:
                    inflow.wasted(visitor.address, len(body))
                raise
        await on_disk(adapter)
        return Response()

    async def query(request: Request) -> Response:
        form, show = data.shower(request.query_params)
        found = data.find(visitor_of(request), *_place(request), name, request.query_params)
        if request.method == HEAD:
            return Response(media_type=form.media_type)
        with room.taken(visitor_of(request).address) as place:
            chunks = _chunks(_shown(adapter, found, show), form)
            first = await anext(chunks)  # until it could be made the request may still be refused
            return _Patient(_whole(first, chunks), form.media_type, place.pop_all().close)

    async def metadata(request: Request) -> Response:
        found = Metadata()
        messages = data.all(visitor_of(request), *_place(request))
        with room.taken(visitor_of(request).address):
            async for message in _taken(adapter, messages):
                shown = adapter.stream_message(message)
                found = found if shown is None else found.with_(shown)
        return as_json(found.shown())

    async def storage(request: Request) -> Response:
        data.all(visitor_of(request), *_place(request))
        return as_json({})

    return {"produce": produce, "metadata": metadata, "storage": storage}.get(name, query)


def _place(request: Request) -> tuple[str, str]:
    """The stream and the partition in the path."""
    return named(request.path_params["stream"]), named(request.path_params["partition"])


def _checked(handle: Handler) -> Handler:
    """Refuse a header that names no token."""

    async def answer(request: Request) -> Response:
        header = request.headers.get("authorization")
        if header is not None and bearer(header) is None:
            raise BadQuery(MALFORMED)
        return await handle(request)

    return answer


# Long answers


async def _taken(adapter: StreamrAdapter, found: Iterator[Message | None]) -> AsyncIterator[Message]:
    """What is *found*; whenever others should have a turn, they have it."""
    for message in found:
        if message is not None:
            yield message
            continue
        turn = anyio.Event()
        adapter.turns.give(turn.set)
        await turn.wait()


async def _shown(
    adapter: StreamrAdapter, found: Iterator[Message | None], show: Callable[[Message], bytes | None]
) -> AsyncIterator[bytes]:
    async for message in _taken(adapter, found):
        if (text := show(message)) is not None:
            yield text


async def _chunks(texts: AsyncIterator[bytes], form: Format) -> AsyncIterator[bytes]:
    """The whole answer, in pieces of some `CHUNK` bytes."""
    chunk, separator = bytearray(form.before), b""
    async for text in texts:
        chunk += separator + text
        separator = form.between
        if len(chunk) >= CHUNK:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk + form.behind)


async def _whole(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


class Full(RequestError):
    """As many long answers as there can be are under way."""


class Room:
    """How many long answers are under way, and for whom."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def taken(self, address: str) -> Iterator[ExitStack]:
        """A place for one answer, given back at the end unless somebody takes over what is in the stack."""
        if self.counts[address] >= MAX_ANSWERS_EACH or self.counts.total() >= MAX_ANSWERS:
            raise Full("as many long answers as there can be are under way; try again when one is over")
        self.counts[address] += 1
        with ExitStack() as stack:
            stack.callback(self._leave, address)
            yield stack

    def _leave(self, address: str) -> None:
        self.counts[address] -= 1
        if not self.counts[address]:
            del self.counts[address]


class _Patient(StreamingResponse):
    """A stream that ends where a client has stopped to read it; *over* is called at the end, whatever that is."""

    def __init__(self, content: AsyncIterator[bytes], media_type: str, over: Callable[[], None]) -> None:
        super().__init__(content, media_type=media_type)
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and say when that is over."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()

    async def stream_response(self, send: Send) -> None:
        """Send it all, each piece within `STALLED_SECONDS`."""

        async def patient(event: Event) -> None:
            with anyio.move_on_after(STALLED_SECONDS) as sending:
                await send(event)
            if sending.cancelled_caught:
                raise _Stalled

        with suppress(_Stalled):
            await super().stream_response(patient)


class _Stalled(Exception):
    """A client takes nothing more."""


# What is told


def _explained(error: Exception) -> tuple[int, str]:
    """The status and the text, as the reference's broker has them."""
    match error:
        case Unauthenticated():
            return 401, DENIED  # clients log in again on this status, and only on it
        case Forbidden():
            return 403, DENIED
        case UnknownChannel():
            return 404, f"Stream {error} not found."
        case Full():
            return 429, str(error)
        case StreamrError() | Invalid() | BadQuery():
            return 400, str(error)
        case _:
            return explained(error)


def _told(_error: Exception, _status: int, message: str) -> dict[str, str]:
    return {"error": message}


def _answers(call: Call) -> dict[str, Any]:
    if call.name == "produce":
        return {}
    return {"application/json": {}} | ({"text/plain": {}} if "format" in call.query else {})


def _described(call: Call) -> dict[str, Any]:
    """The parameters and the body, for /docs."""
    paths = [(name, "path", True) for name in ("stream", "partition") if f"{{{name}" in call.path]
    queries = [(name.lstrip("*"), "query", name.startswith("*")) for name in call.query.split()]
    parameters = [
        {"name": name, "in": where, "required": required, "schema": {"type": "string"}}
        for name, where, required in (*paths, *queries)
    ]
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}}
    return {"parameters": parameters} | (body if call.method == "POST" else {})
