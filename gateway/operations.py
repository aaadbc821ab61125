"""What operators ask: what is spoken, what is counted, whether all is well, and the log itself."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import StreamingResponse

from . import history, views
from .callers import Caller
from .problems import PROTOCOL
from .publish import NDJSON
from .routes import MAX, After, Route
from .runtime import Gateway, clock


class Operations:
    """The handlers; those outside /v1/ need no key."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def protocols(self, request: Request) -> Response:
        """What is spoken here, in which versions, and what each protocol can and cannot carry."""
        Caller(self.gateway, request)
        rows: list[dict[str, Any]] = [
            {
                "name": adapter.name,
                "title": adapter.title,
                "versions": adapter.versions,
                "paths": adapter.paths,
                "listeners": [listener.name for listener in adapter.listeners()],
                "carries": dict(adapter.carries),
            }
            for adapter in self.gateway.adapters
        ]
        own = {"name": PROTOCOL, "title": "REST", "versions": ["1"], "paths": ["/v1"], "listeners": [], "carries": {}}
        return views.answer({"protocols": [*rows, own]})

    async def log(
        self,
        request: Request,
        after: After = 0,
        limit: Annotated[int, Query(ge=1, le=MAX, description="How many lines at most.")] = 1_000,
    ) -> Response:
        """The log's own lines, as they are on disk (right: `admin`)."""
        Caller(self.gateway, request).check("admin", "")
        return StreamingResponse(history.log_lines(self.gateway, after, limit), media_type=NDJSON[0])

    async def stats(self, request: Request) -> Response:
        """What was counted since the start, by protocol."""
        Caller(self.gateway, request).check("history", "")
        protocols: dict[str, dict[str, int]] = {}
        for name, counter in self.gateway.metrics.counts.items():
            for (label, *_), value in counter.items():
                if name != "faults":
                    row = protocols.setdefault(label, {})
                    row[name] = row.get(name, 0) + value
        return views.answer(
            {
                "version": self.gateway.version,
                "uptimeSeconds": (clock() - self.gateway.started) // 1000,
                "sequence": self.gateway.log.synced_seq,
                "connections": self.gateway.bus.population,
                "protocols": protocols,
                "reports": {each.name: report for each in self.gateway.adapters if (report := each.report())},
                "links": [link.report() for link in self.gateway.links],
                "faults": {kind: value for (kind,), value in self.gateway.metrics.counts["faults"].items()},
            }
        )

    async def home(self) -> Response:
        """Where to go from here."""
        links = {"api": "/docs", "channels": "/v1/channels", "protocols": "/v1/protocols", "health": "/readyz"}
        return views.answer({"name": "Trellis", "version": self.gateway.version, **links})

    async def healthz(self) -> Response:
        """Whether the process lives."""
        return views.answer({"status": "alive"})

    async def readyz(self) -> Response:
        """Whether messages are taken; 503 while they are not."""
        if not self.gateway.ready:
            return views.answer({"status": "the gateway starts or stops"}, 503)
        if self.gateway.bus.congested:
            return views.answer({"status": "the disk does not keep up, or cannot be written"}, 503)
        return views.answer({"status": "ready"})

    async def metrics(self) -> Response:
        """Everything that is counted, for Prometheus."""
        return Response(self.gateway.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


# fmt: off
ROUTES = [
    Route("GET", "/v1/protocols", Operations.protocols),
    Route("GET", "/v1/log",       Operations.log, media_type=NDJSON[0]),
    Route("GET", "/v1/stats",     Operations.stats),
    Route("GET", "/",             Operations.home),
    Route("GET", "/healthz",      Operations.healthz),
    Route("GET", "/readyz",       Operations.readyz),
    Route("GET", "/metrics",      Operations.metrics, media_type="text/plain"),
]
# fmt: on
