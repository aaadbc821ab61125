"""What the tests of the Python client need: both event loops, a real gateway, and a proxy that loses connections."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from tests.server import Server


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("client") / "data") as server:
        yield server


class LossyProxy:
    """Passes bytes on to *target* and back, until it is told to lose them."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._connections: set[tuple[ByteStream, ByteStream]] = set()
        self.answers_to_lose = 0  # connections that end in the place of their next answer
        self.address = ""

    async def lose(self) -> None:
        """Cut every connection."""
        for pair in list(self._connections):
            for stream in pair:
                await anyio.aclose_forcefully(stream)

    async def handle(self, client: ByteStream) -> None:
        async with client, await anyio.connect_tcp(self._host, self._port) as gateway:
            pair = (client, gateway)
            self._connections.add(pair)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._pass, client, gateway, tasks.cancel_scope)
                    await self._pass(gateway, client, tasks.cancel_scope)
            finally:
                self._connections.discard(pair)

    async def _pass(self, source: ByteStream, sink: ByteStream, scope: anyio.CancelScope) -> None:
        try:
            async for data in source:
                if b"HTTP/1.1 2" in data[:10] and self.answers_to_lose:
                    self.answers_to_lose -= 1
                    break
                await sink.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[LossyProxy]:
    """Run a proxy to the address *target*."""
    proxy = LossyProxy(target)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        proxy.address = "{}:{}".format(*listener.extra(SocketAttribute.local_address))
        tasks.start_soon(listener.serve, proxy.handle)
        yield proxy
        tasks.cancel_scope.cancel()


class Script:
    """A server that gives each request the next of its answers, and remembers the requests."""

    def __init__(self, answers: Iterable[bytes]) -> None:
        self._answers = iter(answers)
        self.requests: list[bytes] = []
        self.address = ""

    async def handle(self, client: ByteStream) -> None:
        async with client:
            data = b""
            while True:
                head, end, body = data.partition(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                if end and len(body) >= (int(length[1]) if length else 0):
                    self.requests.append(data)
                    await client.send(next(self._answers))
                    data = b""
                try:
                    data += await client.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return


@asynccontextmanager
async def server_of(*answers: bytes) -> AsyncIterator[Script]:
    """Run a server that gives these *answers*."""
    script = Script(answers)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        script.address = "{}:{}".format(*listener.extra(SocketAttribute.local_address))
        tasks.start_soon(listener.serve, script.handle)
        yield script
        tasks.cancel_scope.cancel()


@pytest.fixture
def scripted() -> Callable[..., Any]:
    return server_of


@pytest.fixture
def proxied() -> Callable[[str], Any]:
    return proxy_to
