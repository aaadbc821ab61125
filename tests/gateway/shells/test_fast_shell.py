"""The fast shell runs inside uvicorn, and limits connections before the handshake."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.core.frames import text_frame
from tests.gateway.shells.fast_peers import FastShell, head, rest, take, text

pytestmark = pytest.mark.usefixtures("allowed")


def hear(peer: socket.socket) -> bytes:
    """The next short message; uvicorn's own pings are passed over."""
    while True:
        first, size = take(peer, 2)
        payload = take(peer, size)
        if first == 0x81:
            return payload
        assert first == 0x89


# Inside uvicorn


def test_uvicorn_still_has_the_overridden_methods() -> None:
    for name in "handle_connect", "data_received", "send", "receive", "run_asgi", "stop_keepalive", "shutdown":
        assert callable(getattr(WebSocketsSansIOProtocol, name))
    for name in "connection_made", "connection_lost", "data_received", "on_message_begin", "on_headers_complete":
        assert callable(getattr(HttpToolsProtocol, name))
    assert callable(HttpToolsProtocol.send_400_response)


def test_an_idle_peer_owns_no_task(server: FastShell) -> None:
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    before = server.call(tasks)
    with server.open(b"/session") as one, server.open(b"/session") as two:
        for peer in one, two:
            head(peer)
            peer.sendall(text(b"hello"))
            assert take(peer, 7) == text_frame(b"hello")
        assert server.call(tasks) == before


def test_a_session_outlives_its_route_and_is_not_pinged(server: FastShell) -> None:
    with server.open(b"/session") as peer:
        head(peer)
        time.sleep(0.2)  # several ping intervals of the configuration
        peer.sendall(text(b"still here"))
        assert take(peer, 12) == text_frame(b"still here")


def test_other_routes_have_a_websocket_as_ever(server: FastShell) -> None:
    with server.open(b"/plain") as peer:
        head(peer)
        for i in range(3):
            peer.sendall(text(b"%d" % i))
            assert hear(peer) == b"%d" % i


def test_a_refusal_is_an_http_response(server: FastShell) -> None:
    with server.open(b"/refused") as peer:
        assert b" 401 " in head(peer)
        assert rest(peer) == b"no such key"


@pytest.fixture
def gate(server: FastShell) -> Iterator[None]:
    """What waits for the gate waits until a test opens it."""
    service = server.service
    server.call(service.gate.clear)
    yield
    server.call(service.gate.set)
    server.eventually(lambda: not service.waiting)


@pytest.mark.usefixtures("gate")
def test_input_before_the_session_is_kept_for_it(server: FastShell) -> None:
    with server.open(b"/hesitant") as peer:
        head(peer)
        peer.sendall(text(b"a") + text(b"b")[:-1])
        time.sleep(0.05)  # so that it is read
        peer.sendall(b"b")
        time.sleep(0.05)
        server.call(server.service.gate.set)
        assert [hear(peer), hear(peer)] == [b"a", b"b"]


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("path", [b"/hesitant", b"/late"])
def test_a_session_for_a_peer_that_left_meanwhile_ends(server: FastShell, path: bytes) -> None:
    count = len(server.service.sessions)
    with server.open(path) as peer:
        server.eventually(lambda: server.service.waiting)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.call(server.service.gate.set)
    server.eventually(lambda: [session.ended for session in server.service.sessions[count:]] == [1])


@pytest.mark.usefixtures("gate")
def test_a_client_that_sends_before_the_handshake_is_answered_is_disconnected(server: FastShell) -> None:
    with server.open(b"/late", early=text(b"hello")) as peer:
        assert rest(peer) == b""


@pytest.mark.parametrize(
    ("extra", "answer"),
    [
        (b"X: " + b"x" * 9000 + b"\r\n", b"HTTP/1.1 431"),
        (b"".join(b"X%d: x\r\n" % i for i in range(200)), b"HTTP/1.1 431"),
        (b"Sec-WebSocket-Version: 1\r\n", b"HTTP/1.1 400"),
        (b"Content-Length: 1\r\n", b""),
    ],
)
def test_an_invalid_handshake_closes_the_connection(server: FastShell, extra: bytes, answer: bytes) -> None:
    with server.open(b"/session", extra) as peer:
        assert rest(peer)[:12] == answer
