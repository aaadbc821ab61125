"""Responds to the queries of one connection, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import StatusCode
from gateway.core.answer_scheduler import AnswerScheduler

from .answers import AnswerLine, FindNodes, PendingAnswer, StreamedAnswer


class Responder:
    """Puts responses into the outbox of *session*; the next query has to wait while one is collected or signed.

    *lost* is called if the rest of a response that is being sent cannot be read.
    """

    def __init__(
        self, session: SproutConnection, nodes: NodeDirectory, scheduler: AnswerScheduler, lost: Callable[[], None]
    ) -> None:
        self._session = session
        self._nodes = nodes
        self._scheduler = scheduler
        self._lost = lost
        self._pending: PendingAnswer | None = None

    @property
    def busy(self) -> bool:
        """Whether a response is being collected or signed."""
        return self._pending is not None

    @property
    def size(self) -> int:
        """The bytes that are kept of that response."""
        return 0 if self._pending is None else self._pending.size

    def respond(self, id: int, find: FindNodes, *, nearest_last: bool = False) -> None:
        """Respond to the query *id* with the nodes that *find* finds, once they are collected and signed."""
        response = StreamedAnswer(self._nodes.reread_line, self._schedule, self._lost)

        def done(lines: list[AnswerLine] | None) -> None:
            self._pending = None
            if lines is None:
                response.fill(codec.encode_status(id, StatusCode.MALFORMED))  # it must not look complete
                return
            lines = codec.fitting(lines, attrgetter("size"))
            response.answer(id, lines[::-1] if nearest_last else lines)

        self._pending = PendingAnswer(find, self._schedule, done)
        self._pending.advance()
        self._session.put(response)

    def stop(self) -> None:
        """Stop collecting; the query gets no response."""
        if self._pending is not None:
            self._pending.over = True

    def _schedule(self, call: Callable[[], None]) -> None:
        """Run *call*, a slice of a response, in the turn of the session's network."""
        self._scheduler.schedule(call, self._session.network)
