"""A gateway with everything that operators can ask for: what several test files look at, started once for each loop."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.access.keyfile import KeyFile
from tests.server import Server
from tests.waiting import until

SECONDS = 20
PROXY = "127.0.0.2"  # a trusted proxy's address; peers come from 127.0.0.1
CONFIG = """
trusted_proxies = ["127.0.0.2"]
[auth.grants]
anonymous = ["*:*"]
[metrics]
port = 0
[sprout]
peers = ["tcp://127.0.0.1:9"]
"""


class Collector:
    """What an OTLP collector gets over HTTP."""

    def __init__(self) -> None:
        spans: Queue[Any] = Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            spans.put(span)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._spans = spans
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> list[Any]:
        """All spans so far."""
        return list(self._spans.queue)

    def stop(self) -> None:
        """Stop."""
        self.server.shutdown()
        self.server.server_close()


class Operated:
    """The gateway, in *folder*, on *loop*; `key` is that of `ada`, `notified` the lines that systemd is told."""

    def __init__(self, folder: Path, loop: str) -> None:
        self.config = folder / "trellis.toml"
        self.configure("")
        self.keys = folder / "data" / "keys" / "api-keys.json"
        self.key = KeyFile(self.keys).add("ada", ("*:*",))
        self.collector = Collector()
        self.notified: list[str] = []
        self._wire = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._wire.bind(str(folder / "notify"))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        env = {
            "NOTIFY_SOCKET": str(folder / "notify"),
            "TRELLIS_TRACING__ENDPOINT": self.collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        flags = ("--config", str(self.config), "--loop", loop, "--log-format", "json")
        self.server = Server(folder / "data", *flags, env=env)
        self.http = self.server.http

    def configure(self, text: str) -> None:
        """Add *text* to the configuration, in the place of what was added before."""
        self.config.write_text(text + CONFIG)

    def hangup(self, answer: str) -> str:
        """Send SIGHUP; what the log says from then on, once *answer* is in it."""
        before = len(self.server.log)
        os.kill(self.server.pid, signal.SIGHUP)
        until(lambda: answer in self.server.log[before:])
        return self.server.log[before:]

    def lines(self, event: str, since: int = 0) -> list[dict[str, Any]]:
        """The lines of the log called *event*, of what was written after so many characters."""
        found = [json.loads(line) for line in self.server.log[since:].splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def stop(self) -> None:
        """Stop everything."""
        self.server.stop()
        self.collector.stop()
        self._wire.shutdown(socket.SHUT_RD)
        self._reader.join()
        self._wire.close()

    def _read(self) -> None:
        while data := self._wire.recv(4096):
            self.notified += data.decode().splitlines()
