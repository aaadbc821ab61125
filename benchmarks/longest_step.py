"""`python -m benchmarks.longest_step`: the longest step of the event loop while REST lists a lot of things.

A gateway with 100,000 channels that somebody listens to, and 10,000 peers in one of them, is asked for all lists there
are, without a server. A step is one callback of the loop; it is told in ms of CPU time, of the thread, beside what was
asked. The second time counts: what is made once for all is then there.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from adapters import ADAPTERS
from gateway.app import create_app
from gateway.core.presence import Roster
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.runtime import Gateway
from gateway.settings.settings import settings_model

CHANNELS, PEERS = 100_000, 10_000
ROOM = "room"
ASKED = (
    "/v1/channels?limit=256",
    "/v1/channels?after=channel-5&limit=256",
    f"/v1/channels/{ROOM}",
    f"/v1/channels/{ROOM}/peers",
    f"/v1/channels/{ROOM}/events",
    "/v1/peers/7",
    "/v1/stats",
    "/v1/log?limit=100000",
    "/v1/protocols",
    "/metrics",
    "/asyncapi.json",
    "/openapi.json",
    "/readyz",
    "/api/v1/streams",
    "/api/v1/streams?search=nowhere",
    "/api/v1/streams?offset=90000",
    f"/api/v1/streams/{ROOM}/subscribers",
    f"/api/v1/streams/{ROOM}/publishers",
)


class ListeningSession(Session):
    """A peer that listens, and is told nothing."""

    protocol = "rest"

    def handle(self, data: bytes) -> None:
        """Nothing."""

    def deliver(self, message: Any) -> None:
        """Nothing."""

    def peer_joined(self, channel: str, peer: Any) -> None:
        """Nothing."""

    def peer_left(self, channel: str, peer: Any) -> None:
        """Nothing."""


class Steps:
    """The longest callback of the loop since the last look."""

    def __init__(self) -> None:
        self.longest = 0.0
        run: Callable[[Any], Any] = asyncio.Handle._run

        def timed(handle: Any) -> None:
            begin = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - begin)

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]

    def take(self) -> float:
        """It, in ms."""
        longest, self.longest = self.longest, 0.0
        return longest * 1000


def fill(gateway: Gateway) -> None:
    """Make the channels and the peers."""
    gateway.channels.register(ROOM)
    bus = gateway.bus
    for _ in range(PEERS):
        session = ListeningSession(bus, Principal("anonymous", ""))
        session.channels[ROOM] = None
        bus._members.setdefault(ROOM, {})[session] = None
        bus.presence._rosters.setdefault(ROOM, Roster()).add(
            session.who
        )  # as `add_listener` does, which tells all others
    for number in range(CHANNELS):
        name = f"channel-{number:06}"
        gateway.channels.restore(name, {"streamr": name})
        gateway.metrics._row(name)


async def ask(app: Any, path: str) -> tuple[int, int]:
    """The status of the answer, and its bytes; a stream ends once its first piece is there."""
    status, size, asked = [0], [0], list[bool]()
    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not asked:
            asked.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        status[0] = event.get("status", status[0])
        size[0] += len(event.get("body", b""))
        if path.endswith("/events") and event.get("body"):
            over.set()

    bare, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
    }
    scope |= {"path": bare, "raw_path": bare.encode(), "query_string": query.encode(), "root_path": ""}
    scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    await asyncio.wait_for(app(scope, receive, send), 10)
    return status[0], size[0]


async def main() -> None:
    """Fill it, ask, and print."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"data": folder, "limits": {"rates": "off"}}
        given["auth"] = {"grants": {"anonymous": ["*:*", "admin:*"]}}  # `/v1/log` is for operators
        for row in ADAPTERS:
            given[row.name] = {name: 0 for name in row.settings_model.model_fields if name.endswith("port")}
        settings = settings_model(ADAPTERS)(**given)
        app = create_app(settings, ADAPTERS)
        async with app.router.lifespan_context(app):
            fill(app.state.gateway)
            await asyncio.sleep(0.5)
            steps = Steps()
            sys.stdout.write("| asked | status | kB | longest step, ms |\n|---|---|---|---|\n")
            for path in sys.argv[1:] or ASKED:
                await ask(app, path)
                await asyncio.sleep(0.2)
                steps.take()
                status, size = await ask(app, path)
                sys.stdout.write(f"| {path} | {status} | {size // 1000} | {steps.take():.1f} |\n")


if __name__ == "__main__":
    asyncio.run(main())
