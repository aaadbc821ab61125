"""Requests of operators: protocols, statistics, health, metrics, and the log itself."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import anyio.to_thread
from fastapi import Query, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.core.channels import MAX_NAME
from gateway.core.message import REST
from gateway.http.websocket.asyncapi import RestSocket
from gateway.runtime import Gateway

from . import asyncapi, explanations, history, pages, pipeline_report, stats, views
from .callers import Caller
from .events import MAX_OUTBOX
from .media import MAX_CONTENT, NDJSON
from .routing import MAX_INTEGER, After, Route

# REST is not an adapter, so its row of `GET /v1/protocols` is here.
REST_DESCRIPTION: Final[dict[str, Any]] = {
    "name": REST,
    "title": "REST",
    "versions": ["1"],
    "paths": ["/v1", *RestSocket.paths],
    "listeners": [],
    "carries": {
        "subscribe": "`GET /v1/channels/{channel}/events`",
        "unsubscribe": "end the stream",
        "publish": "`POST /v1/channels/{channel}/messages`: 201",
        "delivered": "event `message`",
        "direct": "`POST /v1/channels/{channel}/peers/{number}/messages`: 202",
        "directDelivered": "event `direct`",
        "presence": "events `joined`, `left`; `GET /v1/channels/{channel}/peers`",
        "history": "`GET /v1/channels/{channel}/messages`",
        "refused": "problem+json",
        "alive": "`GET /healthz`, `GET /readyz`",
    },
    "limits": {
        "content": f"{MAX_CONTENT:,} bytes",
        "name": f"{MAX_NAME} characters",
        "outbox": f"{MAX_OUTBOX:,} bytes",
    },
}


class Operations:
    """The handlers; of those outside /v1/, only the metrics need a key."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._asyncapi: dict[str, Any] | None = None  # without its servers, which differ by the host that was asked

    async def protocols(self, request: Request) -> Response:
        """List the protocols, their versions, and what each protocol can and cannot express."""
        Caller(self.gateway, request).pace("")
        rows: list[dict[str, Any]] = [
            {
                "name": adapter.name,
                "title": adapter.title,
                "versions": adapter.versions,
                "paths": adapter.paths,
                "listeners": [listener.name for listener in adapter.listeners()],
                "carries": dict(adapter.carries),
                "limits": dict(adapter.limits),
            }
            for adapter in self.gateway.adapters
        ]
        return views.json_response({"protocols": [*rows, REST_DESCRIPTION]})

    async def log(
        self,
        request: Request,
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_INTEGER, description="The maximum number of lines.")] = 1_000,
    ) -> Response:
        """Read the lines of the log as they are on disk (right: `admin`)."""
        caller = Caller(self.gateway, request)
        caller.check("admin", "")
        return await caller.paced_response(history.log_lines(self.gateway, after, limit), NDJSON[0], "admin", "")

    async def stats(self, request: Request) -> Response:
        """Get counts since the start by protocol, channel and direction, and the state of the pipeline's tables."""
        caller = Caller(self.gateway, request)
        caller.check("history", "")
        caller.charge(stats.COST)
        pipeline = await anyio.to_thread.run_sync(stats.pipeline_tables, self.gateway.settings.warehouse)
        return views.json_response(stats.report(self.gateway) | {"pipeline": pipeline})

    async def report(self, request: Request) -> Response:
        """Get the numbers of the pipeline's last report; a client that accepts HTML gets its page."""
        caller = Caller(self.gateway, request)
        caller.check("history", "")
        caller.charge(stats.COST)
        warehouse, headers = self.gateway.settings.warehouse, {"Vary": "Accept"}
        if "text/html" in request.headers.get("accept", ""):
            page = await anyio.to_thread.run_sync(pipeline_report.read_page, warehouse)
            headers |= {"Content-Security-Policy": explanations.CSP, "X-Content-Type-Options": "nosniff"}
            return Response(page, media_type="text/html", headers=headers)
        found = await anyio.to_thread.run_sync(pipeline_report.read_report, warehouse)
        return Response(found, media_type=views.MEDIA_TYPE, headers=headers)

    async def home(self, request: Request) -> Response:
        """Get links to the other pages; a client that accepts HTML, such as a browser, is redirected to the console."""
        if pages.prefers_html(request.headers.get("accept", "")):
            return pages.redirect(request, pages.PATH.lstrip("/") + "/")
        links = {"api": "/docs", "channels": "/v1/channels", "protocols": "/v1/protocols", "health": "/readyz"}
        response = views.json_response(
            {"name": "Trellis", "version": self.gateway.version, "console": f"{pages.PATH}/", **links}
        )
        response.headers["Vary"] = "Accept"
        return response

    async def asyncapi(self, request: Request) -> Response:
        """Get the AsyncAPI document of the messages on WebSockets and TCP."""
        listening = getattr(request.app.state, "listening", {})
        described = self._asyncapi
        if described is None:
            make = partial(asyncapi.document, (*self.gateway.adapters, RestSocket()), self.gateway.version, listening)
            described = self._asyncapi = await anyio.to_thread.run_sync(make)
        servers = asyncapi.servers(request.url.netloc, listening, secure=request.url.scheme == "https")
        return views.json_response({**described, "servers": servers})

    async def healthz(self) -> Response:
        """Check that the process is alive."""
        return views.json_response({"status": "alive"})

    async def readyz(self) -> Response:
        """Check that the gateway is ready; otherwise the status is 503 and the body gives every reason."""
        if reasons := self.gateway.unready_reasons():
            return views.json_response({"status": "; ".join(reasons)}, 503)
        return views.json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Get all metrics for Prometheus; with authentication, the key needs the right `history:*`."""
        Caller(self.gateway, request).check("history", "")
        return Response(await self.gateway.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


# fmt: off
ROUTES = [
    Route("GET", "/v1/protocols", Operations.protocols, schema="Protocols"),
    Route("GET", "/v1/log",       Operations.log, media_type=NDJSON[0]),
    Route("GET", "/v1/stats",     Operations.stats, schema="Stats"),
    Route("GET", "/v1/report",    Operations.report, schema="Report"),
    Route("GET", "/",             Operations.home, schema="Home"),
    Route("GET", "/asyncapi.json", Operations.asyncapi, schema="AsyncApi"),
    Route("GET", "/healthz",      Operations.healthz, schema="Status"),
    Route("GET", "/readyz",       Operations.readyz, others=(503,), schema="Status"),
    Route("GET", "/metrics",      Operations.metrics, media_type="text/plain"),
]
# fmt: on
