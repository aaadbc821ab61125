"""A gateway with a protocol of one-line commands, on every shell, and its peers."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from functools import partial
from typing import Any, Self

import anyio
import sniffio
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI, WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.errors import ProtocolError
from gateway.core.frames import text_frame
from gateway.core.message import Message, MessageIds, PendingForm
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.stamper import Stamper
from gateway.shells import fast_shell, portable_shell, tcp_server, uvicorn_websocket
from tests.gateway.shells.servers import Counts, MemoryLedger, hypercorned, uvicorned

PATIENCE = 20  # seconds; long, so that a slow machine proves nothing
SMALL = 1 << 14  # a client's socket buffers, so that the kernel hides little of a peer that does not read
PIECE = 1 << 10


class CommandSession(Session):
    protocol = "toy"
    framed = False

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, Principal("somebody"))
        self.rest = b""
        self.peak = 0  # bytes that waited to be written at most
        self.pulled = 0  # pieces of streams
        self.over = 0  # times that the end was reported

    def handle(self, data: bytes) -> None:
        *lines, self.rest = [data, b""] if self.framed else (self.rest + data).split(b"\n")
        for line in lines:
            if self.closing is not None:
                return
            verb, _, rest = line.partition(b" ")
            getattr(self, "do_" + verb.decode())(rest)
            self.peak = max(self.peak, self._size)

    def frame(self, payload: bytes) -> bytes:
        return text_frame(payload) if self.framed else payload + b"\n"

    def deliver(self, message: Message) -> None:
        self.put(message.form(f"toy/{self.framed}", lambda message, _: self.frame(message.content)))

    def receive_eof(self) -> None:
        self.over += 1
        super().receive_eof()

    def goodbye(self) -> None:
        self.send(self.frame(b"goodbye"))
        super().goodbye()

    # The commands

    def do_echo(self, rest: bytes) -> None:
        self.send(self.frame(rest))

    def do_join(self, channel: bytes) -> None:
        self.bus.subscribe(self, channel.decode())
        self.send(self.frame(b"joined"))

    def do_say(self, rest: bytes) -> None:
        channel, _, content = rest.partition(b" ")
        self.bus.publish(Message(channel.decode(), self.who, self.protocol, content), self)

    def do_size(self, rest: bytes) -> None:
        self.send(self.frame(b"x" * int(rest.split()[0])))

    def do_long(self, count: bytes) -> None:
        self.stream(map(self.piece, range(int(count))))

    def do_parts(self, count: bytes) -> None:
        self.put(Parts(int(count)))

    def piece(self, number: int) -> bytes:
        self.pulled += 1
        return self.frame(b"%d " % number + b"." * PIECE)

    def do_bye(self, rest: bytes) -> None:
        self.send(self.frame(rest))
        self.close(4000, "bye")

    def do_fail(self, rest: bytes) -> None:
        self.send(self.frame(rest))
        raise ProtocolError("as you wish " + "é" * 200)

    def do_jam(self, rest: bytes) -> None:
        assert isinstance(self.bus.ledger, MemoryLedger)
        self.bus.ledger.congested = True
        self.send(self.frame(rest))


class Parts(PendingForm):
    """An answer in *count* lines, each made in a later turn of the loop."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count
        self.advance()

    @property
    def size(self) -> int:
        return super().size + 2 * self.left

    def advance(self) -> bool:
        if not self.left:
            return False
        self.done, self.data = False, None
        soon(self.make)
        return True

    def make(self) -> None:
        self.left -= 1
        self.fill(b"p\n")


def soon(call: Callable[[], None]) -> None:
    """Run *call* when others had their turn, on the loop that runs here."""
    if sniffio.current_async_library() == "asyncio":
        asyncio.get_running_loop().call_later(0.01, call)
    else:
        trio.lowlevel.current_trio_token().run_sync_soon(call)


class FramedToy(CommandSession):
    framed = True


class ShellServer:
    """A running shell, in a thread of its own."""

    def __init__(self, framed: bool) -> None:
        self.framed = framed
        self.counts = Counts()
        self.ledger = MemoryLedger()
        nobody = lambda *_: None  # noqa: E731
        milliseconds = lambda: int(time.time() * 1000)  # noqa: E731
        self.bus = Bus(
            self.ledger,
            Channels([], nobody),
            PeerRegistry(1, nobody, nobody, nobody, nobody),
            Stamper(MessageIds(1), milliseconds),
            milliseconds,
            self.counts,
        )
        self.sessions: list[CommandSession] = []
        self.port = 0
        self.portal: BlockingPortal
        self._channels = itertools.count()

    def accept(self, _address: str = "") -> CommandSession:
        self.sessions.append((FramedToy if self.framed else CommandSession)(self.bus))
        return self.sessions[-1]

    def channel(self) -> bytes:
        return b"channel-%d" % next(self._channels)

    def connect(self) -> Client:
        client: Client = (Framed if self.framed else LineClient)(self.port)
        client.say(b"echo hello")
        assert client.hear() == b"hello"
        client.session = self.sessions[-1]
        return client

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.portal.call(function, *args)

    def eventually(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds on the server's thread."""
        deadline = time.monotonic() + PATIENCE
        while not self.call(condition):
            assert time.monotonic() < deadline
            time.sleep(0.002)


@asynccontextmanager
async def tcp(server: ShellServer, listen: Any, tls: Any = None) -> AsyncIterator[int]:
    async with anyio.create_task_group() as tasks:
        async with AsyncExitStack() as stack:
            yield await listen(server.accept, "127.0.0.1", 0, tasks=tasks, stack=stack, tls=tls)
        tasks.cancel_scope.cancel()


def application(server: ShellServer) -> FastAPI:
    app = FastAPI()

    @app.websocket("/")
    async def connect(websocket: WebSocket) -> None:
        session = server.accept()
        await websocket.accept()
        await portable_shell.run_websocket(websocket, session)

    return app


def by_uvicorn(server: ShellServer, ws: Any) -> AbstractAsyncContextManager[int]:
    return uvicorned(application(server), ws, ws_max_size=1 << 20)


def by_hypercorn(server: ShellServer) -> AbstractAsyncContextManager[int]:
    return hypercorned(application(server))


ASYNCIO: dict[str, Any] = {"backend": "asyncio"}
UVLOOP: dict[str, Any] = {"backend": "asyncio", "backend_options": {"use_uvloop": True}}
TRIO: dict[str, Any] = {"backend": "trio"}
Shells = dict[str, tuple[dict[str, Any], Any]]
TCP: Shells = {
    "portable-tcp-asyncio": (ASYNCIO, partial(tcp, listen=tcp_server.listen)),
    "portable-tcp-trio": (TRIO, partial(tcp, listen=tcp_server.listen)),
    "fast-tcp-asyncio": (ASYNCIO, partial(tcp, listen=fast_shell.listen)),
    "fast-tcp-uvloop": (UVLOOP, partial(tcp, listen=fast_shell.listen)),
}
FAST_WEBSOCKET: Shells = {
    "fast-websocket-asyncio": (ASYNCIO, partial(by_uvicorn, ws=uvicorn_websocket.FastWebSocket)),
    "fast-websocket-uvloop": (UVLOOP, partial(by_uvicorn, ws=uvicorn_websocket.FastWebSocket)),
}
HYPERCORN: Shells = {"portable-websocket-hypercorn-trio": (TRIO, by_hypercorn)}
UVICORN: Shells = {"portable-websocket-uvicorn": (ASYNCIO, partial(by_uvicorn, ws=WebSocketsSansIOProtocol))}
WEBSOCKET: Shells = FAST_WEBSOCKET | UVICORN | HYPERCORN
SHELLS: Shells = TCP | WEBSOCKET


def run(backend: dict[str, Any], shell: Any, framed: bool) -> Iterator[ShellServer]:
    server = ShellServer(framed)
    with start_blocking_portal(**backend) as portal:
        server.portal = portal
        with portal.wrap_async_context_manager(shell(server)) as server.port:
            yield server


class Client:
    """A peer on a raw socket. `hear` gives a payload, or a number once the server has closed."""

    session: CommandSession

    def __init__(self, port: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        # Segments that fit the window; else the kernel sends one at each tick of its persist timer, 200 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        self.socket.settimeout(PATIENCE)
        if port is not None:
            self.connect(port)

    def connect(self, port: int) -> None:
        self.socket.connect(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def wrap(self, payload: bytes) -> bytes:
        raise NotImplementedError

    def hear(self) -> bytes | int:
        raise NotImplementedError

    def say(self, *payloads: bytes) -> None:
        self.socket.sendall(b"".join(map(self.wrap, payloads)))

    def reset(self) -> None:
        """Leave without a word: the server's next write or read fails."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.__exit__()


class LineClient(Client):
    def wrap(self, payload: bytes) -> bytes:
        return payload + b"\n"

    def hear(self) -> bytes | int:
        line = self.file.readline()
        return line[:-1] if line else 0


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


class Framed(Client):
    def __init__(self, port: int, extra: bytes = b"") -> None:
        super().__init__(port)
        self.socket.sendall(HANDSHAKE + extra + b"\r\n")
        assert b" 101 " in self.file.readline()
        self.head = b"".join(iter(self.file.readline, b"\r\n"))
        self.pongs: list[bytes] = []

    def wrap(self, payload: bytes, first: int = 0x81) -> bytes:
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", first, 0x80 | size)
        else:
            head = struct.pack("!BBH", first, 0xFE, size) if size < 1 << 16 else struct.pack("!BBQ", first, 0xFF, size)
        return head + bytes(4) + payload  # a mask of zeros is a mask

    def hear(self) -> bytes | int:
        while head := self.file.read(2):
            size = head[1]
            if size > 125:
                size = int.from_bytes(self.file.read(2 if size == 126 else 8), "big")
            payload = self.file.read(size)
            if head[0] == 0x81:
                return payload
            if head[0] == 0x88:
                self.socket.sendall(self.wrap(payload, 0x88))
                assert self.file.read(1) == b""
                return int.from_bytes(payload[:2], "big")
            assert head[0] == 0x8A
            self.pongs.append(payload)
        return 0


def end(server: ShellServer, code: int) -> int:
    return code if server.framed else 0


def hear_all(client: Client) -> tuple[list[bytes], int]:
    heard = []
    while isinstance(said := client.hear(), bytes):
        heard.append(said)
    return heard, said


def write_until_stuck(client: Client, data: bytes, most: int = 1 << 26) -> int:
    """Write *data* again and again until the server has not read for a while; the bytes written."""
    client.socket.settimeout(0.3)
    sent = 0
    many = data * (1 + (1 << 16) // len(data))
    try:
        while sent < most:
            sent += client.socket.send(many[sent % len(data) :])
    except TimeoutError:
        client.socket.settimeout(PATIENCE)
        return sent
    raise AssertionError("the server reads on and on")
