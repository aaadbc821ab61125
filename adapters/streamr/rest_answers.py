"""What all answers of Streamr's REST interface have in common: who asks, who is let in, how refusals come about."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import anyio
import structlog
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from gateway.auth import bearer
from gateway.errors import RequestError, Throttled, Unknown
from gateway.jsontext import dumps
from gateway.networks import network

from .checks import MAX_NAME
from .desk import Desk, Refused, Visitor
from .ids import NAME

if TYPE_CHECKING:
    from .adapter import StreamrAdapter

BODY_SECONDS = 30.0  # for all of a body to come
MAX_TARGET = 8_192  # bytes of a path and its query: a stream's name in percent-encoded UTF-8 has at most 6,144
UNREAD = (408, 413)  # who is told so may be sending still, for ever: the connection ends
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


class HeadedRoute(APIRoute):
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


def answering(adapter: StreamrAdapter, desk: Desk, handle: Handler, explain: Explain, tell: Tell) -> Handler:
    """Turn refusals into answers, by *explain* and *tell*, and let pages that are welcome read them."""

    async def answer(request: Request) -> Response:
        welcome: dict[str, str] = {}
        try:
            origin = request.headers.get("origin")
            desk.admit(origin, request.headers.get("host"))
            welcome = CORS | {"Access-Control-Allow-Origin": origin} if origin is not None else {}
            _check_target(request)
            desk.throttle(visitor_of(request))
            response = await handle(request)
        except Exception as error:
            status, message = explain(error)
            if status == 500:
                logger.exception("a request failed", method=request.method, path=request.url.path)
                adapter.services.metrics.count("faults", "request")
            adapter.services.metrics.count("refused", NAME, str(status))
            response = as_json(tell(error, status, message), status)
            response.headers.update(_retry(error))
            if status in UNREAD and request.scope.get("http_version") in ("1.0", "1.1"):
                response.headers["Connection"] = "close"
        response.headers.update(welcome)
        if request.method == HEAD:
            response.body = b""
        return response

    return answer


def _check_target(request: Request) -> None:
    """Raise `Refused` 414 where the path and the query are too long to be looked at."""
    if len(request.scope.get("raw_path") or request.scope["path"]) + len(request.scope["query_string"]) > MAX_TARGET:
        raise Refused(414, f"a path and its query have at most {MAX_TARGET} bytes")


def explained(error: Exception) -> tuple[int, str]:
    """The status and the text for an *error*; what is a bug is not told."""
    match error:
        case Refused():
            return error.status, str(error)
        case Throttled():
            return 429, str(error)
        case RequestError():
            return 503, str(error)
        case ClientDisconnect():
            return 400, "the body was cut off"
        case TimeoutError():
            return 408, f"the body took more than {BODY_SECONDS:.0f} s"
        case _:
            return 500, "something is wrong with the gateway; its log says more"


def _retry(error: Exception) -> Mapping[str, str]:
    return {"Retry-After": str(ceil(error.retry_after_seconds))} if isinstance(error, Throttled) else {}


def as_json(value: Any, status: int = 200) -> Response:
    """An answer with a JSON value."""
    return Response(dumps(value), status, media_type="application/json")


def named(segment: str) -> str:
    """What a *segment* of a path says; `Refused` 400 where it is no UTF-8, percent-encoded or not, or too long."""
    try:
        text = unquote_to_bytes(segment.encode("latin-1")).decode()
    except UnicodeError:
        raise Refused(400, f"not percent-encoded UTF-8: {segment!r}") from None
    if len(text) > MAX_NAME:
        raise Refused(400, f"a name in a path has at most {MAX_NAME} characters")
    return text


def visitor_of(request: Request) -> Visitor:
    """Who makes a request."""
    return Visitor(bearer(request.headers.get("authorization")), network(request.client.host) if request.client else "")


async def on_disk(adapter: StreamrAdapter) -> None:
    """Wait until everything that was said so far is on disk; `Unknown` where the disk fails meanwhile."""
    done, doubts = anyio.Event(), list[bool]()
    ledger = adapter.bus.ledger

    def doubt() -> None:
        doubts.append(True)
        done.set()

    ledger.when_synced(ledger.next_seq - 1, done.set, doubt)
    await done.wait()
    if doubts:
        raise Unknown(f"the log cannot be written: {ledger.failing}")


class Body:
    """A body that is coming: a holder of the memory budget, which ends it where memory is short."""

    def __init__(self, network: str) -> None:
        self.network = network
        self.data = bytearray()
        self.scope = anyio.CancelScope()

    @property
    def holding(self) -> int:
        """The bytes that have come."""
        return len(self.data)

    def give_up(self) -> None:
        """Read no more of it."""
        self.scope.cancel()


async def body_of(adapter: StreamrAdapter, request: Request, limit: int) -> bytes:
    """The body; `Refused` 413 as soon as it is longer than *limit* bytes, `TimeoutError` if it does not come.

    Whoever asks for it has looked before at all that can be refused without it.
    """
    _check_length(request, limit)
    body = Body(visitor_of(request).address)
    inflow = adapter.bus.inflow
    if inflow is not None:
        inflow.budget.enter(body)
    try:
        with anyio.fail_after(BODY_SECONDS), body.scope:
            async for chunk in request.stream():
                body.data += chunk
                if body.scope.cancel_called:  # what has come already is given without waiting, and so not interrupted
                    break
                if len(body.data) > limit:
                    raise Refused(413, f"more than {limit} bytes")
    finally:
        if inflow is not None:
            inflow.budget.leave(body)
    if body.scope.cancel_called:
        raise Refused(503, "the gateway is short of memory; try again in a moment")
    return bytes(body.data)


def _check_length(request: Request, limit: int) -> None:
    """Raise `Refused` 413 where a body says itself that it is longer than *limit* bytes."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > len(str(limit)) or int(length) > limit:
        raise Refused(413, f"more than {limit} bytes")
