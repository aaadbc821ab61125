"""The client's side of a WebSocket, on both event loops, against the server of another library."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import anyio
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from gateway.core.frames import text_frame
from gateway.shells.client_websocket import ClientWebSocketWire, open_websocket
from tests.waiting import until

LOOPS = ("asyncio", "trio")


class Place:
    """A server that does what its path says."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended: list[int] = []

    def handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        match connection.request.path:
            case "/speak":
                connection.send("at once")
                connection.send(["in ", "three ", "parts"])
                connection.send(b"\xff binary")
                assert connection.ping().wait(10)  # answered
                connection.send("x" * 60_000)
            case "/long":
                connection.send("x" * (1 << 20) + "x")
            case "/bye":
                connection.close(1001, "bye")
        try:
            for message in connection:
                self.heard.append(message)
        except ConnectionClosed:
            pass
        self.ended.append(connection.protocol.close_code or 0)

    def check(self, connection: ServerConnection, request: Any) -> Any:
        return connection.respond(HTTPStatus.FORBIDDEN, "no") if request.path == "/forbidden" else None


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def server(place: Place) -> Iterator[Server]:
    with serve(place.handle, "127.0.0.1", 0, process_request=place.check) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def dial(server: Server, path: str) -> ClientWebSocketWire:
    port = server.socket.getsockname()[1]
    stream = await anyio.connect_tcp("127.0.0.1", port)
    return await open_websocket(stream, f"ws://127.0.0.1:{port}{path}")


@pytest.mark.parametrize("loop", LOOPS)
def test_messages_come_whole_and_pings_are_answered(server: Server, place: Place, loop: str) -> None:
    async def scenario() -> None:
        wire = await dial(server, "/speak")
        heard = [await wire.receive() for _ in range(4)]
        assert heard == [b"at once", b"in three parts", "� binary".encode(), b"x" * 60_000]
        await wire.send([text_frame(b"one"), text_frame("zwei ü".encode() * 30_000)])
        await wire.close(1000, "done")

    anyio.run(scenario, backend=loop)
    until(lambda: place.ended)
    assert (place.heard, place.ended) == (["one", "zwei ü" * 30_000], [1000])


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_closes_is_heard(server: Server, place: Place, loop: str) -> None:
    async def scenario() -> None:
        wire = await dial(server, "/bye")
        assert await wire.receive() is None
        with pytest.raises(anyio.ClosedResourceError):
            await wire.send([text_frame(b"too late")])
        await wire.close(1000, "")

    anyio.run(scenario, backend=loop)
    until(lambda: place.ended == [1001])


def test_a_message_that_is_too_long_ends_the_connection(server: Server, place: Place) -> None:
    async def scenario() -> None:
        wire = await dial(server, "/long")
        assert await wire.receive() is None
        await wire.close(1000, "")

    anyio.run(scenario)
    until(lambda: place.ended == [1009])


def test_a_refused_handshake_says_why(server: Server) -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionRefusedError, match=r"it is no WebSocket: .*403"):
            await dial(server, "/forbidden")

    anyio.run(scenario)
