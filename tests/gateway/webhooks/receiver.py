"""A receiver of webhooks for tests: a real HTTP server on a thread, which answers as a test wants."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PATIENCE = 30.0


class Delivered(NamedTuple):
    """A request that the receiver got."""

    headers: dict[str, str]
    body: bytes
    path: str
    at: float

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    @property
    def content(self) -> Any:
        return self.message["content"]


Answer = tuple[int, dict[str, str], bytes | None]  # without a body it has no end
OK: Answer = (204, {}, b"")
LAST: Answer = (204, {"Connection": "close"}, b"")


class Receiver:
    """Listens on 127.0.0.1. *answer* makes the answer to each request, in the thread of its connection."""

    def __init__(
        self, answer: Callable[[Delivered], Answer] = lambda _got: OK, context: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.got: list[Delivered] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # as above
        if context is not None:
            # Each handshake is done by the thread of its request: one that a client leaves undone holds up nobody else.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "http" if context is None else "https"
        self.port: int = self._server.server_address[1]
        self.url = f"{scheme}://localhost:{self.port}/hook" if context else f"{scheme}://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    def contents(self) -> list[Any]:
        """The contents of what came, each message once, in the order of its first arrival."""
        return list({got.headers["webhook-id"]: got.content for got in list(self.got)}.values())

    def until(self, true: Callable[[list[Delivered]], bool]) -> list[Delivered]:
        """What came, as soon as something is *true* of it."""
        with self._changed:
            assert self._changed.wait_for(lambda: true(self.got), PATIENCE), [got.content for got in self.got]
            return list(self.got)


def handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    """What handles the requests to *receiver*."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            got = Delivered(headers, body, self.path, time.monotonic())
            with receiver._changed:
                receiver.got.append(got)
                receiver._changed.notify_all()
            status, more, text = receiver.answer(got)
            self.send_response(status)
            size = {} if status == 204 else {"Content-Length": str(1 << 40 if text is None else len(text))}
            for name, value in (size | more).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the gateway may hang up
                while text is None:
                    self.wfile.write(bytes(1 << 12))
                    time.sleep(0.001)
                self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler
