"""Refuses requests that no route takes: unknown paths, wrong methods, HTTP at a WebSocket's path or the reverse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi import Request, Response, WebSocket
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute

from gateway.core.errors import RequestError
from gateway.core.message import REST

from .bodies import network_of
from .callers import admit_request
from .problems import Problem, problem_of, problem_of_status, problem_response, shortened

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
UNROUTED = "unrouted"  # the name of routes that take what no other route does


def unrouted(request: Request) -> Problem:
    """Return the problem of a *request* that no route takes."""
    path = shortened(request.url.path)
    methods, is_websocket, without_slash = set[str](), False, False
    for route in _flatten(request.app.routes):
        if getattr(route, "name", None) == UNROUTED:
            continue
        without_slash |= _takes(route, request.url.path.rstrip("/"))
        if route.matches(request.scope)[0] == Match.PARTIAL:
            methods |= getattr(route, "methods", None) or set()
        elif isinstance(route, WebSocketRoute):
            is_websocket |= route.path_regex.match(request.url.path) is not None
    if methods:
        allow = ", ".join(sorted(methods))
        detail = f"{request.method} is not possible here; allowed: {allow}"
        return Problem("method-not-allowed", detail, {"Allow": allow})
    if is_websocket:
        headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
        return Problem("upgrade-required", f"{path} is a WebSocket; connect with a WebSocket client", headers)
    advice = "leave out the slash at the end" if without_slash else "GET /docs lists all paths"
    return Problem("not-found", f"there is nothing at {path}; {advice}")


async def refuse_websocket(websocket: WebSocket) -> None:
    """Answer the handshake of a WebSocket at a path that has none, with a problem in the body."""
    gateway = websocket.app.state.gateway
    try:
        admit_request(gateway, websocket)
        problem = _no_websocket(websocket)
    except RequestError as error:
        problem = problem_of(error)
    gateway.metrics.refused(
        REST, str(problem.status), path=websocket.url.path, network=network_of(websocket), why=problem.detail
    )
    await websocket.send_denial_response(problem_response(problem))


def _no_websocket(websocket: WebSocket) -> Problem:
    routes = _flatten(websocket.app.routes)
    paths = [each.path for each in routes if isinstance(each, WebSocketRoute) and each.name != UNROUTED]
    path = shortened(websocket.url.path)
    return Problem("not-found", f"there is no WebSocket at {path}; connect to one of {', '.join(sorted(paths))}")


def _takes(route: BaseRoute, path: str) -> bool:
    return isinstance(route, Route) and route.path_regex.match(path) is not None


def _flatten(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield *routes* and those of included routers, which FastAPI keeps as one route each."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from _flatten(included.routes)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Return the problem for an *error* that Starlette raised outside of the routes of REST, and count it."""
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        problem = unrouted(request)
    else:
        problem = problem_of_status(error.status_code, error.detail, error.headers)
    request.app.state.gateway.metrics.count("refused", REST, str(problem.status))
    return problem_response(problem)
