"""The composition root: one FastAPI application with one gateway, every adapter and every listener in it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import anyio
import sniffio
import structlog
from anyio.abc import TaskGroup
from fastapi import FastAPI, Request, WebSocket
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapters import ADAPTERS
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import OperatorError, RequestError
from gateway.core.message import REST
from gateway.core.session import Session
from gateway.help import routes as help_routes
from gateway.http import metrics_port, openapi, pages, reference_pages, rest
from gateway.http.bodies import network_of
from gateway.http.callers import admit_request
from gateway.http.cors import Cors
from gateway.http.head_limits import head_problem
from gateway.http.persistent import PersistentConnections
from gateway.http.problems import problem_of, problem_response
from gateway.http.rest_helpers import LOGGED
from gateway.http.unrouted import UNROUTED, answer_http_exception, refuse_websocket
from gateway.http.websocket.messages import PATH
from gateway.http.websocket.session import WebSocketService
from gateway.listeners.proxies import ForwardedHeaders
from gateway.membership.held_links import hold_links, name_links
from gateway.membership.membership import Membership
from gateway.membership.setup import membership_of
from gateway.settings.settings import Settings
from gateway.shells import fast_shell, tcp_server
from gateway.shells.flusher import flusher_of
from gateway.shells.turns import turns_of
from gateway.shells.websocket_endpoint import websocket_endpoint
from gateway.system.posting import poster
from gateway.webhooks import routes as webhook_routes
from gateway.webhooks.courier import Courier

from . import gauges
from .adapter import Adapter, Listener, Refusal
from .runtime import Gateway

logger = structlog.get_logger("trellis")

RAW_PATHS = ("/v1/", "/api/v1/")  # names in these paths may contain an encoded slash; their handlers check the caller
MAX_KNOWN = 65_536
READING = ("GET", "HEAD", "OPTIONS")  # methods that log nothing
HEALTH = ("/healthz", "/readyz")  # for health checks, which may use any name of the machine as the host


def create_app(settings: Settings, adapters: Iterable[type[Adapter]] = ADAPTERS) -> FastAPI:
    """Create the ASGI application; the gateway starts and stops with its lifespan."""
    gateway = Gateway(settings, adapters)
    gateway.membership = membership_of(gateway)
    courier = Courier(gateway)
    app = FastAPI(
        title="Trellis",
        version=gateway.version,
        lifespan=partial(_lifespan, courier=courier),
        summary="Arbor, the topic relay, Streamr and REST",
        openapi_url=None,  # `reference_pages` serves it
    )
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    app.state.openapi_text = reference_pages.OpenApiText(app)
    app.state.gateway = gateway
    app.state.listening = None  # until everything does
    app.state.failure = None
    _add_routes(app, gateway, courier)
    _add_middleware(app, gateway)
    return app


def _add_routes(app: FastAPI, gateway: Gateway, courier: Courier) -> None:
    """Add the paths of each adapter, of REST and of the pages.

    The routes are added themselves: `include_router` would build each a second time at the first request, and each
    request would be matched in two steps. They are tried in order, so those of REST come first: 49 that do not match
    take 56 us.
    """
    app.routes.extend(rest.router(gateway).routes)
    for adapter in gateway.adapters:
        for path in adapter.paths:
            app.add_api_websocket_route(path, websocket_endpoint(gateway, adapter), name=adapter.name)
        for router in adapter.routers():
            app.routes.extend(router.routes)
    app.add_api_websocket_route(PATH, websocket_endpoint(gateway, WebSocketService(gateway)), name=REST)
    for router in (
        reference_pages.router(app.state.openapi_text),
        webhook_routes.router(courier),
        rest.fallback(gateway),
        pages.router(),
        help_routes.router(),
    ):
        app.routes.extend(router.routes)
    app.add_api_websocket_route("/{path:path}", refuse_websocket, name=UNROUTED)
    app.add_exception_handler(HTTPException, answer_http_exception)


def _add_middleware(app: FastAPI, gateway: Gateway) -> None:
    """Add what sees a request before its handler; the last one added sees it first."""
    app.add_middleware(Guard, gateway=gateway)
    if gateway.membership is not None:
        app.add_middleware(TurnTaking, membership=gateway.membership)
    app.add_middleware(Cors, gateway=gateway)
    app.add_middleware(RawPaths)
    app.add_middleware(BoundedHeads)
    app.add_middleware(PersistentConnections, seconds=gateway.settings.limits.keep_alive_seconds)
    if gateway.tracing is not None:
        app.add_middleware(gateway.tracing.middleware)
    if gateway.proxies:
        app.add_middleware(ForwardedHeaders, proxies=gateway.proxies)


@asynccontextmanager
async def _lifespan(app: FastAPI, courier: Courier) -> AsyncIterator[None]:
    """Start the gateway, its tasks and its listeners, and stop them."""
    gateway: Gateway = app.state.gateway
    async with AsyncExitStack() as stack:
        _start(app)
        stack.callback(gateway.stop)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(_tick, gateway)
        tasks.start_soon(app.state.openapi_text.prepare)
        gauges.install(gateway)
        gateway.metrics.gauges["tasks"] = _task_counter()
        if sniffio.current_async_library() == "asyncio":
            _watch_loop(gateway)
        await tasks.start(courier.run)
        app.state.listening = await _listen(gateway, tasks, stack)
        if gateway.membership is not None:
            name_links(gateway.membership, gateway.links)
            tasks.start_soon(hold_links, gateway.membership, gateway.links)
        for link in gateway.links:
            tasks.start_soon(link.run)
        yield
        gateway.goodbye()


def _start(app: FastAPI) -> None:
    """Start the gateway; if its data cannot be used, `app.state.failure` tells the server that runs *app* why."""
    gateway = app.state.gateway
    try:
        gateway.start(poster())
    except OperatorError as error:
        app.state.failure = str(error)
        raise
    except (OSError, ValueError, sqlite3.Error) as error:
        app.state.failure = unusable(gateway.settings.data, error)
        raise


def unusable(data: Path, error: Exception) -> str:
    """Return why the data directory *data* cannot be used, and what to do about it."""
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
        if error.filename not in (None, str(data)):
            reason = f"{error.filename}: {reason}"
    return f"{data} cannot be used: {reason}; choose another with --data"


class Guard:
    """Applies the rules and rates of every request to the pages for operators and to /docs."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a problem in the place of the application, or let it answer."""
        app = self._app
        if scope["type"] == "http" and not scope["path"].startswith(RAW_PATHS) and scope["path"] not in HEALTH:
            try:
                admit_request(self._gateway, Request(scope))
            except RequestError as error:
                problem = problem_of(error)
                details = {"path": scope["path"], "network": network_of(Request(scope)), "why": problem.detail}
                self._gateway.metrics.refused(REST, str(problem.status), **details)
                app = problem_response(problem)
        await app(scope, receive, send)


class TurnTaking:
    """In a cluster, lets requests that may log something wait until this gateway accepts."""

    def __init__(self, app: ASGIApp, membership: Membership) -> None:
        self._app = app
        self._membership = membership
        self._known = BoundedMap[bytes, None](MAX_KNOWN)  # credentials whose sender has a number

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait, and keep the turn for a moment, so that the handler still has it."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        digest = self._unknown_credentials(scope)
        if not digest and (scope["type"] == "websocket" or scope["method"] in READING):
            await self._app(scope, receive, send)
            return
        with self._membership.keeping() as done:  # a turn that begins is not passed on before this request had it
            await self._membership.until_acting()
            if digest and self._membership.turn.acting:
                self._known[digest] = None

            async def send_and_release(message: Message) -> None:
                done()  # what had to be logged was, or the handler waits by itself
                await send(message)

            scope[LOGGED] = done
            await self._app(scope, receive, send_and_release)

    def _unknown_credentials(self, scope: Scope) -> bytes:
        """A digest of the credentials that are shown for the first time, in a request or a handshake; else empty.

        Their sender gets a number then, which is logged, at the latest when a WebSocket is opened: some requests that
        only read need none. What comes on a WebSocket waits by itself.
        """
        query: bytes = scope["query_string"]
        shown = dict(scope["headers"]).get(b"authorization") or (query if b"key=" in query else b"")
        digest = sha256(scope["type"].encode() + shown).digest() if shown else b""
        return b"" if digest in self._known else digest


class BoundedHeads:
    """Refuses requests whose heads are long before anything parses them, whoever sends them, on every server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with a problem in the place of the application, or let it answer."""
        if scope["type"] in ("http", "websocket") and (problem := head_problem(scope)) is not None:
            network = network_of(HTTPConnection(scope))
            scope["app"].state.gateway.metrics.refused(REST, str(problem.status), network=network, why=problem.detail)
            response = problem_response(problem)
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(response)
            else:
                await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RawPaths:
    """Routes on the path as it was sent, so that `%2F` in a name does not end it; handlers unquote."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the raw path to the application in the place of the decoded one."""
        if scope["type"] == "http" and scope["path"].startswith(RAW_PATHS):
            raw = scope.get("raw_path") or scope["path"].encode()
            scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self._app(scope, receive, send)


async def _listen(gateway: Gateway, tasks: TaskGroup, stack: AsyncExitStack) -> dict[str, str | None]:
    """Open the TCP ports the adapters want; where each listens, by the name it has in the ready line."""
    listening: dict[str, str | None] = {}
    for adapter in gateway.adapters:
        for listener in adapter.listeners():
            listening[listener.name] = await _open(gateway, adapter, listener, tasks, stack)
    own = gateway.settings.metrics
    if own.port is not None:
        listening["metrics"] = await metrics_port.listen(gateway, own.host, own.port, tasks)
    return listening


async def _open(
    gateway: Gateway, adapter: Adapter, listener: Listener, tasks: TaskGroup, stack: AsyncExitStack
) -> str | None:
    context = gateway.certificate.context(gateway.settings) if listener.tls else None
    if listener.tls and context is None:
        return None

    def accept(address: str) -> Session | Refusal:
        return gateway.admission.admit(adapter, address)

    seconds = gateway.settings.limits.handshake_seconds
    pacer = gateway.bus.read_pacer
    tls = None if context is None else tcp_server.Handshakes(context, gateway.admission, seconds, pacer)
    host = gateway.settings.host
    listen = fast_shell.listen if sniffio.current_async_library() == "asyncio" else tcp_server.listen
    port = await listen(accept, host, listener.port, tasks=tasks, stack=stack, tls=tls)
    return f"{host}:{port}"


def _watch_loop(gateway: Gateway) -> None:
    """Watch what the fast shell does in the loop for all connections together, and let it end the turns of the bus."""
    import asyncio

    loop = asyncio.get_running_loop()
    gateway.bus.gathering.at_turn_end = flusher_of(loop).before_flush
    gateway.watchdog.watch("the flusher", lambda: flusher_of(loop).progress)
    gateway.watchdog.watch("the turns", lambda: turns_of(loop).progress)


async def _tick(gateway: Gateway) -> None:
    gateway.watchdog.start()
    while True:
        await anyio.sleep(1)
        try:
            for _ in gateway.tick_in_slices():
                await anyio.sleep(0)
        except Exception:  # a bug; the next tick may do what this one did not
            gateway.metrics.count("faults", "tick")
            logger.exception("a periodic task failed; it is retried in a second")


def _task_counter() -> Callable[[], int]:
    """How to count the tasks of the current event loop."""
    if sniffio.current_async_library() == "asyncio":
        import asyncio

        loop = asyncio.get_running_loop()
        return lambda: len(asyncio.all_tasks(loop))
    import trio

    return lambda: trio.lowlevel.current_statistics().tasks_living
