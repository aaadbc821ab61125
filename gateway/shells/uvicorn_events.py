"""An event stream on a connection of its own, after the application has begun the response and caught up.

`uvicorn_http.FastHttp` hands the connection over. uvicorn would have a task for each stream and several calls for each
write; on a connection of its own, a message costs a stream what it costs a WebSocket (decision 62).
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableSet
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.core.outbox import Close
from gateway.core.session import Session
from gateway.http import events
from gateway.http.streaming import LAST_CHUNK, chunk

from .connection import Connection


class EventProtocol(Connection):
    """A session that only sends, in the chunks of an HTTP/1.1 response whose head is written already."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Discard *data*: a client has nothing to send while it listens."""

    def _watch_stall(self, left: int) -> None:
        self._stall_timer = self._loop.call_later(events.STALLED_SECONDS, self._check_stall, left)

    def write_close(self, close: Close) -> None:
        """Write a comment that says why the stream ends, and the end of the response."""
        self.transport.write(chunk(events.comment(close.reason)) + LAST_CHUNK)


def run_stream(
    session: Session,
    transport: asyncio.Transport,
    flow: FlowControl,
    loop: asyncio.AbstractEventLoop,
    connections: MutableSet[Any],
) -> None:
    """Run *session* on *transport*, which uvicorn's *flow* controlled until now."""
    connection = EventProtocol(loop, connections)
    transport.set_protocol(connection)
    connection.start(transport, session)
    if flow.write_paused:
        connection.pause_writing()
    if flow.read_paused and not connection.reading_paused:
        transport.resume_reading()
