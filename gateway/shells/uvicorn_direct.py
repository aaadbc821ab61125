"""uvicorn's HTTP protocol, which answers the most frequent request by itself (`gateway.http.direct`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.http.direct import Answer, answer_publish, direct_post

from .flusher import flusher_of
from .uvicorn_timeouts import TimedHttp

if TYPE_CHECKING:
    from gateway.runtime import Gateway


class DirectHttp(TimedHttp):
    """A protocol that answers a short publish of *gateway* when it was read as a whole, without an application."""

    gateway: Gateway | None = None

    def answered(self, status: int) -> None:
        """The answer to a request has *status*."""

    def answers_directly(self, cycle: RequestResponseCycle) -> bool:
        """Whether the request is answered here; if not, the application has to.

        A client that does not read its answers is left to the application, which waits for it.
        """
        gateway = self.gateway
        if gateway is None or cycle.more_body or self.flow.write_paused:
            return False
        post = direct_post(cycle.scope, len(cycle.body))  # type: ignore[arg-type]
        if post is None or gateway.tracing is not None or gateway.log.held:
            return False
        flusher_of(self.loop).arrivals += 1  # what comes in this turn of the loop may be published together
        body, cycle.body = bytes(cycle.body), bytearray()
        answer_publish(gateway, cycle.scope, post, body, partial(self._write_answer, cycle))  # type: ignore[arg-type]
        return True

    def _write_answer(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        """Write what uvicorn would, with the headers of the middleware."""
        if cycle.disconnected or self.transport.is_closing():
            return
        assert self.gateway is not None
        self.answered(answer.status)
        more = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        kept = b"keep-alive: timeout=%d" % self.gateway.settings.limits.keep_alive_seconds
        self.transport.write(
            b"%b%bcontent-length: %d\r\ncontent-type: %b\r\n%b\r\n\r\n%b"
            % (
                STATUS_LINE[answer.status],
                b"".join([b"%b: %b\r\n" % each for each in (*cycle.default_headers, *more)]),
                len(answer.body),
                answer.media_type.encode(),
                kept if cycle.keep_alive else b"connection: close",
                answer.body,
            )
        )
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
