"""Makes routes of handlers: errors become problems, and /docs describes parameters and responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import partial
from inspect import cleandoc
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from . import schemas, views
from .callers import Caller
from .problems import MEDIA_TYPE as PROBLEM_TYPE
from .problems import Handler, Problem, handle_errors, shortened
from .unrouted import UNROUTED

STRICT = "/v1/"  # below it, a parameter that the route does not have is refused
TAGS = {"/v1/webhooks": "webhooks", "/v1/": "REST", "": "operations"}  # by the beginning of a path
MAX_INTEGER = 1 << 62  # the highest sequence or number that a request may name

# Parameters that several handlers have.
After = Annotated[int, Query(ge=0, le=MAX_INTEGER, description="Only messages with a higher sequence.")]
Id = Annotated[str, Path(description="A message's canonical id, or its id in any protocol; percent-encoded.")]
Selected = Annotated[list[str], Query(description="Channels, and patterns as `news/*`, between commas; repeatable.")]
Names = Annotated[list[str], Query(description="One channel, whatever characters its name has; repeatable.")]

PROBLEM = {
    "description": "What is wrong, and what to do about it.",
    "content": schemas.content(PROBLEM_TYPE, "Problem"),
}


class Route(NamedTuple):
    """A row of a table of routes.

    *more* is added to the OpenAPI operation; a *raw* handler is called with only the request. *others* are further
    statuses with the same form of body. Without a *summary* the handler's docstring describes the route.
    """

    method: str
    path: str
    handler: Callable[..., Any]
    status: int = 200
    media_type: str = views.MEDIA_TYPE
    more: Mapping[str, Any] = MappingProxyType({})
    raw: bool = False
    others: tuple[int, ...] = ()
    summary: str = ""
    schema: str = ""  # the name of the schema of its JSON in `gateway.http.schemas`


class ProblemRoute(APIRoute):
    """A route that answers every error with a problem, and counts it."""

    def get_route_handler(self) -> Handler:
        """Return FastAPI's own handler, with its errors translated, and unknown parameters refused below /v1/."""
        handler = super().get_route_handler()
        if not self.path.startswith(STRICT) or self.name == UNROUTED:
            return partial(handle_errors, handler)
        known = tuple(field.alias for field in self.dependant.query_params)

        async def strict(request: Request) -> Response:
            if not request.query_params.keys() <= set(known):
                Caller(request.app.state.gateway, request)  # no valid key: that error comes first, and costs
                refuse_unknown(request.query_params, known)
            return await handler(request)

        return partial(handle_errors, strict)


def refuse_unknown(given: Collection[str], known: Collection[str]) -> None:
    """Raise `Problem` for a parameter that is not *known*: ignoring it would answer another question.

    One that begins with `_` is ignored: JavaScript libraries add it so that no cache answers.
    """
    for name in given:
        if name in known or name.startswith("_"):
            continue
        if near := get_close_matches(name, known, 1):
            advice = f"did you mean {near[0]!r}?"
        elif name == "key":
            advice = "send the key as `Authorization: Bearer KEY`"
        else:
            advice = f"there are {', '.join(known)}" if known else "this request has none"
        raise Problem("invalid-parameter", f"there is no parameter {shortened(name)} here; {advice}")


class RawRoute(ProblemRoute):
    """A route whose handler reads the request itself; its parameters are described by `Route.more` alone.

    FastAPI's way from a route to its handler takes longer than everything else that a publish needs.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the handler with only the request."""
        response = await handle_errors(self.endpoint, Request(scope, receive, send))
        await response(scope, receive, send)


def add_route(router: APIRouter, owner: object, route: Route) -> None:
    """Serve *route*, whose handler is a method of *owner*; the docstring of the handler is its description."""
    content = {} if route.status == 204 else {"content": schemas.content(route.media_type, route.schema)}
    done: dict[str, Any] = {"description": "Done."} | content
    responses: dict[int | str, dict[str, Any]] = dict.fromkeys((route.status, *route.others), done)
    responses |= {"default": PROBLEM, 422: PROBLEM}
    summary, _, description = cleandoc(route.handler.__doc__ or "").partition("\n")
    register(
        router,
        route._replace(summary=summary.rstrip(".")),
        getattr(owner, route.handler.__name__),
        responses,
        description=description.strip(),
        route_class_override=RawRoute if route.raw else ProblemRoute,
        operation_id=route.handler.__name__,
        tags=[next(tag for prefix, tag in TAGS.items() if route.path.startswith(prefix))],
    )


def register(
    router: APIRouter,
    route: Route,
    endpoint: Callable[..., Any],
    responses: Mapping[int | str, dict[str, Any]],
    **options: Any,
) -> None:
    """Serve *route* by *endpoint*; *responses* and *options* are those of `APIRouter.add_api_route`."""
    router.add_api_route(
        route.path,
        endpoint,
        methods=[route.method],
        summary=route.summary,
        status_code=route.status,
        response_class=Response,
        responses=dict(responses),
        openapi_extra=dict(route.more),
        response_model=None,  # handlers make their responses; FastAPI need not read what they return
        **options,
    )


def parameters(path: str, query: str = "") -> list[dict[str, Any]]:
    """Return the parameters of *path* and *query* in OpenAPI's form, all strings.

    *query* holds names separated by spaces; a star marks those that are required.
    """
    rows = [(name, "path", True) for name in re.findall(r"{(\w+)", path)]
    rows += [(name.lstrip("*"), "query", name.startswith("*")) for name in query.split()]
    return [
        {"name": name, "in": where, "required": required, "schema": {"type": "string"}}
        for name, where, required in rows
    ]
