"""CORS (WHATWG Fetch, section 3.2): web pages of allowed origins may read what REST answers.

Which origins are allowed is the setting `auth.origins`, as everywhere. `Access.origin_refusal` decides for each
request, because a reload changes the setting, and because the gateway's own pages and those of this machine are allowed
without it; Starlette's middleware only knows a list that is fixed at the start. Requests without an origin, such as
those of programs, pass unchanged. Nothing here allows credentials: a key is sent in a header or in the URL, never by
the browser of its own accord.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access.origins import ANY
from gateway.core.errors import RequestError
from gateway.core.message import REST
from gateway.runtime import Gateway

from .callers import admit_request
from .problems import problem_of, problem_response

PATHS: Final = ("/v1/", "/console/trellis.js")  # REST, and the module by which pages use it
EXPOSED: Final = "Allow, Retry-After, WWW-Authenticate"  # response headers that pages may read, beside the safelisted
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
    "Access-Control-Max-Age": "600",  # seconds; a setting that was changed takes effect for everybody after them
}


class Cors:
    """Answers preflight requests to REST, and adds the headers of CORS to what it answers to allowed pages."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer; a page that is refused gets no header of CORS."""
        if scope["type"] != "http" or not scope["path"].startswith(PATHS):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (origin := headers.get("origin")) is None:
            await self._app(scope, receive, send)
            return
        added = self._added(origin, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            await send(message)

        app = self._app
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            app = self._preflight(Request(scope))
        await app(scope, receive, send_with_headers)

    def _added(self, origin: str, headers: Headers) -> Mapping[str, str]:
        """Return the headers for an answer to a page of *origin*."""
        access = self._gateway.access
        vary = {"Vary": "Origin"}
        if access.origin_refusal(origin, headers.get("host")) is not None:
            return vary
        exposed = {"Access-Control-Expose-Headers": EXPOSED}
        if access.origins.any:
            return exposed | {"Access-Control-Allow-Origin": ANY}
        return exposed | vary | {"Access-Control-Allow-Origin": origin}

    def _preflight(self, request: Request) -> Response:
        """Return the answer to a preflight request, which is charged as any other."""
        try:
            admit_request(self._gateway, request)
        except RequestError as error:
            problem = problem_of(error)
            self._gateway.metrics.count("refused", REST, str(problem.status))
            return problem_response(problem)
        return Response(status_code=204, headers=PREFLIGHT)
