"""uvicorn's HTTP protocol with limits on the head of a request, and without any upgrade but that to a WebSocket.

llhttp stops parsing after a request with `Upgrade`, whatever protocol that names, and uvicorn then goes on as if the
request had no body: the body would be read as the next request, unseen by the rules of a proxy in front (request
smuggling). A server may ignore `Upgrade` (RFC 9110, section 7.8), so such a request is parsed again without it.
"""

from __future__ import annotations

from typing import Final

import httptools

from gateway.http.head_limits import MAX_HEAD, MAX_HEADERS, MAX_LINE, TOO_LONG_HEAD
from gateway.http.problems import Problem

from .uvicorn_timeouts import TimedHttp

MAX_SILENCE: Final = MAX_HEAD  # bytes between two pieces of a body: chunk extensions, and the trailers at its end


class HeadHttp(TimedHttp):
    """A protocol whose requests are bounded, and complete whatever protocol they ask for."""

    max_head = MAX_HEAD
    _is_too_long = False  # the head of the request
    _silence = 0  # bytes read since the last piece of a body, outside heads
    _body_size = 0  # bytes of the body of the last request
    _body_length = 0  # its Content-Length

    def parse(self, data: bytes) -> None:
        """Parse *data*, and add it to the size of the head if that is not complete."""
        was_in_head, head, before = self._in_head, self._heads, self._body_size
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if self._is_too_long:
                self.refuse(Problem("head-too-long", TOO_LONG_HEAD))
                return
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            self.send_400_response(message)
            return
        if head != self._heads or self._body_size != before:  # a request or a part of a body was in it
            self._silence = 0
        elif was_in_head and self._in_head:
            self._head_size += len(data)
        else:
            self._silence += len(data)
        if self._head_size > self.max_head or self._silence > MAX_SILENCE or len(self.headers or ()) > MAX_HEADERS:
            self.refuse(Problem("head-too-long", TOO_LONG_HEAD))

    def refuse(self, problem: Problem) -> None:
        """Send *problem* as the last response."""
        raise NotImplementedError

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self._is_handshake():
                    self.handle_websocket_upgrade()
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _should_upgrade(self) -> bool:
        """Return True, so that uvicorn does not answer a request with `Upgrade` by itself: `_feed` decides about it."""
        return True

    def _is_handshake(self) -> bool:
        """Whether the request that asks for an upgrade is the handshake of a WebSocket (RFC 6455, section 4.1).

        One with a body is refused by websockets, which ends the connection.
        """
        scope, wanted = self.scope, dict(self.scope["headers"]).get(b"upgrade", b"").lower()
        return wanted == b"websocket" and scope["method"] == "GET" and scope["http_version"] == "1.1"

    def _head_without_upgrade(self) -> bytes:
        """Return the head that was parsed, for another parser."""
        line = b"%b %b HTTP/%b\r\n" % (
            self.scope["method"].encode(),
            self.url,
            self.scope["http_version"].encode(),
        )
        kept = [b"%b: %b\r\n" % header for header in self.scope["headers"] if header[0] != b"upgrade"]
        return line + b"".join(kept) + b"\r\n"

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        super().on_message_begin()
        self._body_size = self._body_length = 0
        self._begin_head()

    def on_headers_complete(self) -> None:
        """Check the length of the complete head; raise `ValueError`, an invalid request, if it is too long."""
        self._end_head()
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
            if name == b"content-length" and value.isdigit() and not self._body_length:
                self._body_length = int(value)
        if size > MAX_LINE or len(self.headers) > MAX_HEADERS:
            longest = max((len(name) + len(value) for name, value in self.headers), default=0)
            self._is_too_long = longest > MAX_LINE or len(self.headers) > MAX_HEADERS or size > self.max_head
            if self._is_too_long:
                raise ValueError(TOO_LONG_HEAD)
        super().on_headers_complete()
        self.headers = []  # trailers are not to be taken for headers (RFC 9110, section 6.5.1)
        if self.scope["method"] == "CONNECT":
            raise ValueError("this is no proxy")

    def on_body(self, body: bytes) -> None:
        """Count a part of a body."""
        self._body_size += len(body)
        super().on_body(body)
