"""Servers and peers of the fast shell."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from uvicorn.server import ServerState

from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.frames import text_frame
from gateway.core.message import Message, MessageIds
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.stamper import Stamper
from gateway.shells import portable_shell, uvicorn_http, uvicorn_websocket
from tests.gateway.shells.servers import Counts, MemoryLedger, uvicorned

PATIENCE = 20  # seconds
BRIEF = 0.3  # seconds, where a test is about a limit
HANDSHAKE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


def new_bus() -> Bus:
    nobody: Any = lambda *_: None  # noqa: E731
    channels, peers = Channels([], nobody), PeerRegistry(1, nobody, nobody, nobody, nobody)
    return Bus(MemoryLedger(), channels, peers, Stamper(MessageIds(1), lambda: 1), lambda: 1, Counts())


class Echo(Session):
    """Says everything back, and to the room."""

    protocol = "echo"
    ended = 0

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, Principal("somebody"))
        bus.subscribe(self, "room")

    def handle(self, data: bytes) -> None:
        self.send(text_frame(data))

    def deliver(self, message: Message) -> None:
        self.put(text_frame(message.content))

    def receive_eof(self) -> None:
        self.ended += 1
        super().receive_eof()

    def say(self, content: bytes) -> None:
        self.bus.publish(Message("room", self.who, self.protocol, content), self)


class HttpPeer(uvicorn_http.FastHttp):
    head_seconds = PATIENCE
    stalled_seconds = PATIENCE


class Service:
    def __init__(self) -> None:
        self.bus = new_bus()
        self.sessions: list[Echo] = []
        self.gate = asyncio.Event()
        self.waiting = 0  # handshakes and sessions, for the gate
        self.app = FastAPI()
        self.app.add_api_websocket_route("/session", self.session)
        self.app.add_api_websocket_route("/hesitant", self.hesitant)
        self.app.add_api_websocket_route("/late", self.late)
        self.app.add_api_websocket_route("/plain", self.plain)
        self.app.add_api_websocket_route("/refused", self.refused)
        self.app.add_route("/length", self.length, methods=["POST"])
        self.app.add_route("/slow", self.slow)
        self.app.add_route("/long", self.long)

    def new_session(self) -> Echo:
        self.sessions.append(Echo(self.bus))
        return self.sessions[-1]

    async def session(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await portable_shell.run_websocket(websocket, self.new_session())

    async def pass_gate(self) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1

    async def hesitant(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await self.pass_gate()
        await portable_shell.run_websocket(websocket, self.new_session())

    async def late(self, websocket: WebSocket) -> None:
        await self.pass_gate()
        session = self.new_session()
        try:
            await websocket.accept()
            await portable_shell.run_websocket(websocket, session)
        except OSError:
            session.receive_eof()

    async def plain(self, websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    async def refused(self, websocket: WebSocket) -> None:
        await websocket.send_denial_response(PlainTextResponse("no such key", 401))

    async def length(self, request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(str(len(await request.body())))
        except ClientDisconnect:
            return PlainTextResponse("nobody hears it")

    async def long(self, request: Request) -> StreamingResponse:  # noqa: ARG002
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(1000):
                yield bytes(1 << 20)

        return StreamingResponse(pieces())

    async def slow(self, request: Request) -> PlainTextResponse:  # noqa: ARG002
        await asyncio.sleep(BRIEF * 1.5)
        return PlainTextResponse("done")


def running(service: Service) -> AbstractAsyncContextManager[int]:
    return uvicorned(
        service.app, uvicorn_websocket.FastWebSocket, HttpPeer, ws_ping_interval=0.05, timeout_keep_alive=1000
    )


class FastShell:
    def __init__(self, portal: Any, service: Service, port: int) -> None:
        self.call = portal.call
        self.service = service
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    @contextmanager
    def open(self, path: bytes, extra: bytes = b"", *, early: bytes = b"") -> Iterator[socket.socket]:
        with self.connect() as peer:
            peer.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HANDSHAKE + extra + b"\r\n")
            if early:
                self.eventually(lambda: self.service.waiting)
                peer.sendall(early)
            yield peer

    def eventually(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.call(condition):
            assert time.monotonic() < deadline
            time.sleep(0.002)


def text(payload: bytes) -> bytes:
    return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload


def head(peer: socket.socket) -> bytes:
    """The head of the response, byte by byte so that nothing after it is taken."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        data += peer.recv(1) or pytest.fail(f"the server hung up after {data!r}")
    return data


def rest(peer: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    data = b""
    try:
        while piece := peer.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def take(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:  # MSG_WAITALL does not wait on a socket with a timeout
        more = peer.recv(count - len(data))
        assert more
        data += more
    return data


class RecordingTransport(asyncio.Transport):
    """A transport that is the list of what was written to it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.written: list[bytes] = []
        self.aborted = self.paused = False

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Nothing more arrives."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The peer is told that nothing follows."""

    def is_closing(self) -> bool:
        return self.aborted

    def close(self) -> None:
        """Everything is written."""

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


async def http_connection(app: Any, sock: socket.socket) -> tuple[HttpPeer, RecordingTransport]:
    ws = uvicorn_websocket.FastWebSocket
    config = uvicorn.Config(app, http=HttpPeer, ws=ws, lifespan="off", log_config=None)
    config.load()
    http, transport = HttpPeer(config, ServerState(), {}), RecordingTransport(sock)
    http.connection_made(transport)
    return http, transport
