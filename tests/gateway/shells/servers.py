"""What the tests of the shells run sessions with: a log that forgets, and servers on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import hypercorn.config
import hypercorn.trio
import trio
import uvicorn

from gateway.core.contracts import Receipt
from gateway.core.message import Message
from gateway.shells import uvicorn_http


class MemoryLedger:
    """Everything is on disk at once, and nothing is found again."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.congested = False
        self.failing: str | None = None

    def extend(self, messages: Sequence[Message]) -> None:
        self.next_seq = messages[-1].seq + 1

    def find(self, id: str) -> Receipt | None:  # noqa: ARG002
        return None

    def find_message(self, id: str) -> Message | None:  # noqa: ARG002
        return None

    def when_synced(self, seq: int, callback: Callable[[], None], *_: Any, **__: Any) -> None:  # noqa: ARG002
        callback()


class Counts:
    """Counts who was too slow."""

    overflows = 0

    def published(self, run: Sequence[Message], deliveries: int) -> None: ...
    def undeliverable(self, message: Message) -> None: ...
    def refused(self, protocol: str, reason: str, **details: object) -> None: ...
    def direct(self, message: Message, listeners: int) -> None: ...
    def id_taken(self, protocol: str) -> None: ...

    def overflow(self, protocol: str) -> None:  # noqa: ARG002
        self.overflows += 1


@asynccontextmanager
async def uvicorned(app: Any, ws: Any, http: Any = uvicorn_http.FastHttp, **options: Any) -> AsyncIterator[int]:
    """Serve *app* by uvicorn; the port."""
    running = uvicorn.Server(uvicorn.Config(app, port=0, http=http, ws=ws, log_config=None, lifespan="off", **options))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.serve)
        while not running.started:
            await anyio.sleep(0.001)
        yield running.servers[0].sockets[0].getsockname()[1]
        running.should_exit = True


@asynccontextmanager
async def hypercorned(app: Any, max_size: int = 1 << 20) -> AsyncIterator[int]:
    """Serve *app* by hypercorn, which takes WebSocket messages of *max_size* bytes; the port."""
    config = hypercorn.config.Config()
    config.bind = ["127.0.0.1:0"]
    config.websocket_max_message_size = max_size
    config.loglevel = "WARNING"
    config.graceful_timeout = 0.2
    stop = trio.Event()
    run: Any = partial(hypercorn.trio.serve, app, config, shutdown_trigger=stop.wait)
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(lambda task_status: run(task_status=task_status))
        yield int(bound.rpartition(":")[2])
        stop.set()
