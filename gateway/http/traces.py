"""Traces of messages (`gateway.core.trace`): switched on for a channel and a minute, and read message by message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Path, Request, Response

from gateway.core.jsontext import dumps
from gateway.core.trace import DeliveryTrace, MessageTrace, Tracer
from gateway.runtime import Gateway

from . import history, views
from .callers import Caller, path_segment
from .problems import Problem, shortened
from .routing import Id, Route

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
        caller = Caller(self.gateway, request)
        name = caller.resolve_channel("admin", channel)
        self.gateway.tracer.start(name)
        return await self._tracing(caller, name)

    async def tracing(self, request: Request, channel: Channel) -> Response:
        """Get whether a channel is traced, and the traces of it that are kept, the oldest first (right: `admin`)."""
        caller = Caller(self.gateway, request)
        return await self._tracing(caller, caller.resolve_channel("admin", channel))

    async def trace(self, request: Request, channel: Channel, id: Id) -> Response:
        """Get when a message was received, logged, on disk, and handed to each connection (right: `admin`)."""
        name = Caller(self.gateway, request).resolve_channel("admin", channel)
        found = self.gateway.tracer.find(history.find_message(self.gateway, name, path_segment(id)).id)
        if found is None:
            raise Problem("not-traced", NOT_TRACED % shortened(path_segment(id)))
        return views.json_response(shown(found))

    async def _tracing(self, caller: Caller, channel: str) -> Response:
        return await caller.paced_response(slices(self.gateway.tracer, channel), views.MEDIA_TYPE, "admin", channel)


def slices(tracer: Tracer, channel: str) -> Iterator[bytes]:
    """The traces of *channel* as JSON, one message in each slice; all of them may have 65,536 deliveries, and 12 MB."""
    yield dumps({"channel": channel, "until": tracer.end(channel)})[:-1] + b',"messages":['
    for number, trace in enumerate(tracer.traces(channel)):
        yield (b"," if number else b"") + dumps(shown(trace))
    yield b"]}"


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
