"""The limits of request heads hold on both servers and every path, before the caller is checked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.http.head_limits import MAX_HEADERS, MAX_LINE, MAX_TARGET
from tests.server import Server

PATIENCE = 20.0  # seconds
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
CHUNKED = b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
POST = b"/v1/channels/heads/messages"


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("heads"), "--loop", request.param) as running:
        yield running


def answered(
    server: Server, target: bytes, headers: bytes = b"", *, method: bytes = b"GET", body: bytes = b""
) -> bytes:
    """All that is answered to one request."""
    host, port = server.http.split(":")
    found = b""
    with socket.create_connection((host, int(port)), PATIENCE) as peer, suppress(ConnectionError):
        peer.sendall(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n%b" % (method, target, headers, body)
        )
        while data := peer.recv(65536):
            found += data
    return found


def status(server: Server, target: bytes, headers: bytes = b"", *, method: bytes = b"GET", body: bytes = b"") -> int:
    return int(answered(server, target, headers, method=method, body=body)[9:12])


@pytest.mark.parametrize("path", [b"/v1/channels", b"/api/v1/streams", b"/", b"/help/", b"/nowhere"])
def test_a_path_with_its_query_is_bounded(server: Server, path: bytes) -> None:
    room = MAX_TARGET - len(path) - 2
    assert status(server, path + b"?_" + b"&" * (room + 2)) == 414
    assert status(server, path + b"?_" + b"=" * room) < 414
    assert status(server, path + b"/" + b"p" * (room + 2)) == 414


def test_the_path_of_a_short_publish_is_bounded(server: Server) -> None:
    target = POST + b"?_" + b"&" * MAX_TARGET
    assert status(server, target, b"Content-Length: 1\r\n", method=b"POST", body=b"1") == 414


def test_the_path_of_a_websocket_is_bounded(server: Server) -> None:
    assert status(server, b"/relay?key=" + b"&" * (MAX_TARGET - 100), WEBSOCKET) in (101, 401)
    assert status(server, b"/relay?key=" + b"&" * MAX_TARGET, WEBSOCKET) in (414, 400)


def test_headers_are_bounded(server: Server) -> None:
    few, many = (b"".join(b"x%d:\r\n" % n for n in range(count)) for count in (MAX_HEADERS - 2, MAX_HEADERS + 1))
    assert status(server, b"/healthz", few) == 200
    assert status(server, b"/healthz", many) == 431
    assert status(server, b"/healthz", b"x: " + b"y" * (MAX_LINE - 1) + b"\r\n") == 200
    assert status(server, b"/healthz", b"x: " + b"y" * (MAX_LINE + 1) + b"\r\n") == 431


def test_trailers_are_no_headers(server: Server) -> None:
    body = b"2\r\nhi\r\n0\r\nAuthorization: Bearer wrong\r\n\r\n"
    assert status(server, POST, CHUNKED, method=b"POST", body=body) == 201


@pytest.mark.parametrize("trailer", [b"x:\r\n", b"y" * 100_000, b"x: " + b"y" * 100_000])
def test_trailers_are_bounded(server: Server, trailer: bytes) -> None:
    answer = answered(server, POST, CHUNKED, method=b"POST", body=b"2\r\nhi\r\n0\r\n" + (trailer * 50_000)[:200_000])
    assert answer[9:12] in (b"431", b"400", b""), "a reset may be faster"


def test_chunks_of_one_byte_are_a_body(server: Server) -> None:
    text = b"x" * 30_000
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    assert status(server, POST, CHUNKED, method=b"POST", body=body) == 201
    assert text in answered(server, POST + b"?order=desc&limit=1")


def test_a_kept_connection_may_make_any_number_of_requests(server: Server) -> None:
    """A request without a body, which came in one piece, once counted as silence of a body that never came."""
    host, port = server.http.split(":")
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Padding: %b\r\n\r\n" % (b"x" * 150)
    with socket.create_connection((host, int(port)), PATIENCE) as peer, peer.makefile("rb") as answers:
        for _ in range(400):
            peer.sendall(request)
            assert answers.readline().startswith(b"HTTP/1.1 200")
            while answers.readline() != b"\r\n":
                pass
            answers.read(len(b'{"status":"alive"}'))
