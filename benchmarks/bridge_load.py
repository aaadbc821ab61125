"""Messages of other protocols, which the gateway signs for Arbor."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from .rest_load import community, rest
from .servers import BenchmarkServer
from .sprout_load import connected, hear, hear_silence, subscribe
from .workload import CountedLoad


class Bridge(CountedLoad):
    """Messages published over REST become nodes that the gateway signs, for one listener or for many."""

    def __init__(self, size: int, listeners: int) -> None:
        self.size = size
        self.listeners = listeners

    @contextmanager
    def prepare(self, server: BenchmarkServer) -> Iterator[Callable[[], int]]:
        """Let the listeners subscribe, and let the gateway sign its first nodes there."""
        channel = f"bridge{time.time_ns()}"
        path = f"/v1/channels/{channel}/messages"
        id = community(server, channel)
        body = b"".join(b'{"n": %d, "text": "%b"}\n' % (n, b"x" * 80) for n in range(self.size))
        with connected(server.sprout, self.listeners) as listeners:
            subscribe(listeners, id)
            rest(server, "POST", path, b'"first"')
            hear(listeners, [1] * self.listeners)
            hear_silence(listeners)  # the community and the identity of who speaks may come with it

            def run() -> int:
                before = [each.nodes for each in listeners]
                with closing(http.client.HTTPConnection(server.http)) as connection:
                    connection.request("POST", path, body, {"Content-Type": "application/x-ndjson"})
                    hear(listeners, [count + self.size for count in before])
                return self.size * self.listeners

            yield run
