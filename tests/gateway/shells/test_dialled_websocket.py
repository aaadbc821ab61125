"""The client side of a WebSocket works on both event loops, against the server of another library."""

from __future__ import annotations

import socket
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import anyio
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.sync.server import Server, ServerConnection, serve

from gateway.core.frames import text_frame
from gateway.shells import portable_shell as shell
from gateway.shells.dialled_websocket import ClientWebSocketWire, open_websocket
from tests.turns_of_others import turns_of_others
from tests.waiting import until

LOOPS = ("asyncio", "trio")
TRIES = 5  # anything may take long once on a busy machine


class ScriptedServer:
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
def place() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def server(place: ScriptedServer) -> Iterator[Server]:
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
def test_messages_come_whole_and_pings_are_answered(server: Server, place: ScriptedServer, loop: str) -> None:
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
def test_a_close_by_the_server_ends_the_client(server: Server, place: ScriptedServer, loop: str) -> None:
    async def scenario() -> None:
        wire = await dial(server, "/bye")
        assert await wire.receive() is None
        with pytest.raises(anyio.ClosedResourceError):
            await wire.send([text_frame(b"too late")])
        await wire.close(1000, "")

    anyio.run(scenario, backend=loop)
    until(lambda: place.ended == [1001])


def test_a_message_that_is_too_long_ends_the_connection(server: Server, place: ScriptedServer) -> None:
    async def scenario() -> None:
        wire = await dial(server, "/long")
        assert await wire.receive() is None
        await wire.close(1000, "")

    anyio.run(scenario)
    until(lambda: place.ended == [1009])


def test_a_refused_handshake_raises_with_its_reason(server: Server) -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionRefusedError, match=r"it is not a WebSocket: .*403"):
            await dial(server, "/forbidden")

    anyio.run(scenario)


PING, FRAGMENT, EMPTY = b"\x89\0", b"\x01\0", b"\x00\0"  # frames of a server, without content
LONG = b"\x81\x7e\xea\x60" + b"x" * 60_000
END = b"\x81\x03end"


@contextmanager
def hostile(*says: bytes, heard: bytearray | None = None) -> Iterator[int]:
    """The port of a server that says these bytes after the handshake, and hangs up once its client does."""

    def run(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        protocol = ServerProtocol()
        with connection, suppress(OSError):
            while not (events := protocol.events_received()):
                protocol.receive_data(connection.recv(4096))
            assert isinstance(events[0], Request)
            protocol.send_response(protocol.accept(events[0]))
            connection.sendall(b"".join(protocol.data_to_send()))
            for data in says:
                connection.sendall(data)
            while data := connection.recv(1 << 16):
                if heard is not None:
                    heard.extend(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


async def dial_port(port: int) -> ClientWebSocketWire:
    return await open_websocket(await anyio.connect_tcp("127.0.0.1", port), f"ws://127.0.0.1:{port}/")


async def hang_up(wire: ClientWebSocketWire, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await wire.close(1000, "")
    await anyio.aclose_forcefully(wire._stream)


@pytest.mark.parametrize("loop", LOOPS)
def test_many_short_frames_leave_the_loop_to_others(loop: str) -> None:
    """64 KiB of pings without content are 32,768 frames, which take the parser a quarter of a second, each time."""
    longest = list[float]()

    async def scenario() -> None:
        with hostile(PING * 50_000 + END) as port:
            wire = await dial_port(port)
            async with turns_of_others(longest):
                assert await wire.receive() == b"end"
            await hang_up(wire, 0)

    while not longest or (longest[-1] >= 0.06 and len(longest) < TRIES):
        anyio.run(scenario, backend=loop)
    assert min(longest) < 0.06, f"{min(longest) * 1000:.0f} ms of work at once"


def test_fragments_without_content_take_no_memory() -> None:
    async def scenario() -> None:
        pongs = bytearray()
        with hostile(FRAGMENT + EMPTY * 50_000 + PING, heard=pongs) as port:
            wire = await dial_port(port)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wire.receive)
                while not pongs:
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            assert sum(sys.getsizeof(held) for held in vars(wire).values()) < 10_000
            await hang_up(wire, 0)

    anyio.run(scenario)


class _Deaf:
    """A stream to a server that reads nothing."""

    async def send(self, _data: bytes) -> None:
        await anyio.sleep_forever()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_reads_nothing_ends_the_connection(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with hostile(PING) as port:
            wire = await dial_port(port)
            monkeypatch.setattr(wire._wire, "_stream", _Deaf())
            monkeypatch.setattr(shell, "STALLED_SECONDS", 0)
            assert await wire.receive() is None  # a pong cannot be written
            assert not await wire.send([text_frame(b"deliveries")])
            await hang_up(wire, 0)

    anyio.run(scenario, backend=loop)


def test_input_after_the_close_is_discarded() -> None:
    async def scenario() -> None:
        with hostile(*[LONG] * 1_000) as port:
            wire = await dial_port(port)
            tracemalloc.start()
            try:
                await hang_up(wire, 1)
                assert tracemalloc.get_traced_memory()[1] < 4 << 20
            finally:
                tracemalloc.stop()

    anyio.run(scenario)
