"""uvicorn's HTTP protocol, which answers the most frequent request by itself (`gateway.http.fast_publish`)."""

from __future__ import annotations

from functools import partial

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.http.fast_publish import Answer, DirectPublisher, direct_post

from .flusher import flusher_of
from .http_gateway import HttpGateway
from .uvicorn_heads import HeadHttp


class DirectHttp(HeadHttp):
    """A protocol whose *publisher* answers a short publish when it was read as a whole, without an application."""

    gateway: HttpGateway | None = None
    publisher: DirectPublisher | None = None

    def answered(self, status: int) -> None:
        """Record the *status* of an answer."""

    def answers_directly(self, cycle: RequestResponseCycle) -> bool:
        """Answer the request here if that is possible; return False if the application has to.

        The application also answers a client that does not read, because it can wait until the client does.
        """
        publisher = self.publisher
        if publisher is None or cycle.more_body or self.flow.write_paused:
            return False
        post = direct_post(cycle.scope, len(cycle.body))  # type: ignore[arg-type]
        if post is None or not publisher.is_ready:
            return False
        flusher_of(self.loop).arrivals += 1  # what comes in this turn of the loop may be published together
        body, cycle.body = bytes(cycle.body), bytearray()
        publisher.answer(cycle.scope, post, body, partial(self._write_answer, cycle))  # type: ignore[arg-type]
        return True

    def _write_answer(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        """Write the response that uvicorn would have written, with the headers that the middleware adds."""
        if cycle.disconnected or self.transport.is_closing():
            return
        assert self.gateway is not None
        self.answered(answer.status)
        more = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        kept = b"keep-alive: timeout=%d" % self.gateway.admission.limits.keep_alive_seconds
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
