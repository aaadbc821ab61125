"""Traces of messages (`gateway.core.trace`): switched on for a channel and a minute, and read message by message."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request, Response

from gateway.core.trace import DeliveryTrace, MessageTrace
from gateway.runtime import Gateway

from . import history, views
from .callers import Caller, path_segment
from .problems import Problem, shortened
from .routes import Id, Route

NOT_TRACED = (
    "the message %s was not traced, or its trace is forgotten; PUT /v1/channels/{channel}/trace traces a minute"
)
Channel = Annotated[str, Path(description="The channel's name, percent-encoded.")]


class Traces:
    """The handlers; each needs the right `admin` on the channel."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def start(self, request: Request, channel: Channel) -> Response:
        """Trace what is published on a channel in the next minute (right: `admin`)."""
        name = Caller(self.gateway, request).resolve_channel("admin", channel)
        self.gateway.tracer.start(name)
        return self._tracing(name)

    async def tracing(self, request: Request, channel: Channel) -> Response:
        """Get whether a channel is traced, and the traces of it that are kept, the oldest first (right: `admin`)."""
        return self._tracing(Caller(self.gateway, request).resolve_channel("admin", channel))

    async def trace(self, request: Request, channel: Channel, id: Id) -> Response:
        """Get when a message was received, logged, on disk, and handed to each connection (right: `admin`)."""
        name = Caller(self.gateway, request).resolve_channel("admin", channel)
        found = self.gateway.tracer.find(history.find_message(self.gateway, name, path_segment(id)).id)
        if found is None:
            raise Problem("not-traced", NOT_TRACED % shortened(path_segment(id)))
        return views.json_response(shown(found))

    def _tracing(self, channel: str) -> Response:
        tracer = self.gateway.tracer
        traces = [shown(each) for each in tracer.traces(channel)]
        return views.json_response({"channel": channel, "until": tracer.end(channel), "messages": traces})


def shown(trace: MessageTrace) -> dict[str, Any]:
    """Return *trace* as REST shows it: times in ms."""
    return {
        "id": trace.id,
        "sequence": trace.seq,
        "channel": trace.channel,
        "sender": views.peer(trace.sender),
        "received": trace.received / 1000,
        "logged": trace.logged / 1000,
        "synced": None if trace.synced is None else trace.synced / 1000,
        "deliveries": [_delivery(each) for each in trace.deliveries],
        "unlisted": trace.unlisted,
        "undelivered": trace.undelivered,
    }


def _delivery(delivery: DeliveryTrace) -> dict[str, Any]:
    return {
        "peer": views.peer(delivery.peer),
        "protocol": delivery.protocol,
        "queued": delivery.queued / 1000,
        "written": None if delivery.written is None else delivery.written / 1000,
    }


# fmt: off
ROUTES = [
    Route("PUT", "/v1/channels/{channel}/trace",               Traces.start, schema="Tracing"),
    Route("GET", "/v1/channels/{channel}/trace",               Traces.tracing, schema="Tracing"),
    Route("GET", "/v1/channels/{channel}/messages/{id}/trace", Traces.trace, schema="Trace"),
]
# fmt: on
