"""Autobahn's cases 1 to 7 and 10 (tests/autobahn.py), held against both shells by a client on a raw socket.

The fast shell reads frames itself and answers everything as it should. Under the portable shell it is the server,
uvicorn or hypercorn, that reads them: what is allowed must be answered the same, and what is forbidden must end the
connection, but with the code, the last echo and at the moment that those choose.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI, WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.core.bus import Bus
from gateway.core.channels import Channels
from gateway.core.frames import text_frame
from gateway.core.message import Message, MessageIds
from gateway.core.peers import PeerRegistry
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.core.stamper import Stamper
from gateway.shells import portable_shell, uvicorn_websocket
from tests.autobahn import CASES, CLOSE, Answer, AutobahnCase, frame
from tests.gateway.shells.servers import MemoryLedger, hypercorned, uvicorned

PATIENCE = 20  # seconds
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


class AutobahnEcho(Session):
    protocol = "echo"

    def handle(self, data: bytes) -> None:
        self.send(text_frame(data))

    def deliver(self, message: Message) -> None:
        raise NotImplementedError


def application() -> FastAPI:
    nobody: Any = lambda *_: None  # noqa: E731
    counts: Any = SimpleNamespace(overflow=nobody, refused=lambda *_, **__: None)  # nothing is published
    channels, peers = Channels([], nobody), PeerRegistry(1, nobody, nobody, nobody, nobody)
    bus, app = Bus(MemoryLedger(), channels, peers, Stamper(MessageIds(1), lambda: 1), lambda: 1, counts), FastAPI()

    @app.websocket("/")
    async def connect(websocket: WebSocket) -> None:
        await websocket.accept()
        await portable_shell.run_websocket(websocket, AutobahnEcho(bus, Principal("somebody")))

    return app


def by_uvicorn(ws: Any) -> AbstractAsyncContextManager[int]:
    return uvicorned(application(), ws)


def by_hypercorn() -> AbstractAsyncContextManager[int]:
    return hypercorned(application(), max_size=16 << 20)


UVLOOP = {"use_uvloop": True}
Shell = tuple[str, dict[str, Any], Callable[[], AbstractAsyncContextManager[int]]]
FAST: dict[str, Shell] = {
    "asyncio": ("asyncio", {}, partial(by_uvicorn, uvicorn_websocket.FastWebSocket)),
    "uvloop": ("asyncio", UVLOOP, partial(by_uvicorn, uvicorn_websocket.FastWebSocket)),
}
PORTABLE: dict[str, Shell] = {
    "uvicorn": ("asyncio", {}, partial(by_uvicorn, WebSocketsSansIOProtocol)),
    "hypercorn": ("trio", {}, by_hypercorn),
}


@pytest.fixture(scope="module")
def shell(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a running one."""
    backend, options, server = (FAST | PORTABLE)[request.param]
    with start_blocking_portal(backend, options) as portal, portal.wrap_async_context_manager(server()) as port:
        yield port


def take(peer: socket.socket, count: int) -> bytes:
    """Exactly *count* bytes, or fewer at the end."""
    data = b""
    while len(data) < count and (piece := peer.recv(count - len(data))):
        data += piece
    return data


def answers(peer: socket.socket) -> Iterator[Answer]:
    """The frames of the server, which are never masked or in fragments, until a close."""
    while head := take(peer, 2):
        first, size = head
        if size > 125:
            size = int.from_bytes(take(peer, 2 if size == 126 else 8), "big")
        assert first & 0xF0 == 0x80
        yield first & 0x0F, take(peer, size)
        if first & 0x0F == CLOSE:
            return


def play(case: AutobahnCase, port: int, *, strict: bool) -> list[Answer]:
    """What a server answers; it is the one that hangs up, if *strict* without being told that nothing follows."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(HANDSHAKE)
        with peer.makefile("rb", buffering=0) as file:
            assert b" 101 " in file.readline()
            assert all(iter(file.readline, b"\r\n"))
        with suppress(ConnectionError):  # it may refuse them before the last
            for piece in case.pieces:
                peer.sendall(piece)
        heard = answers(peer)
        found = list(islice(heard, len(case.answers) - 1)) if case.bye else []
        if strict:
            with suppress(ConnectionError):  # it hangs up by itself if it is not told so within a second
                peer.sendall(case.bye)
            found += heard
            with suppress(ConnectionError):  # who hangs up does not wait for what is unread
                if not case.bye:
                    peer.sendall(frame(*found[-1]))
                assert peer.recv(1) == b""
            return found
        with suppress(OSError):  # it may have reset the connection
            peer.sendall(case.bye)
            peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            found += heard
    return found


def without_reason(found: Sequence[Answer], expected: Sequence[Answer]) -> list[Answer]:
    """What was *found*, with the reason of a close only where one is *expected*."""
    return [*found[:-1], (found[-1][0], found[-1][1][: len(expected[-1][1])])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
@pytest.mark.parametrize("shell", FAST, indirect=True)
def test_the_fast_shell_answers(shell: int, case: AutobahnCase) -> None:
    found = play(case, shell, strict=True)
    assert without_reason(found, case.answers) == list(case.answers)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
@pytest.mark.parametrize("shell", PORTABLE, indirect=True)
def test_the_portable_shell_answers(shell: int, case: AutobahnCase) -> None:
    found = play(case, shell, strict=False)
    if case.bye:
        assert found == list(case.answers)
    else:
        said = [answer for answer in found if answer[0] != CLOSE]
        assert said == list(case.answers[: len(said)])
