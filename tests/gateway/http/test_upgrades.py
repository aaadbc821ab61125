"""Requests to upgrade to other protocols than WebSocket are answered, and their bodies are never parsed as requests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.server import Server

PATIENCE = 20.0  # seconds
PAUSE = 0.05  # seconds, after which the body comes in a segment of its own
MESSAGES = "/v1/channels/upgrades/messages"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
SMUGGLED = b"PUT /v1/channels/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
JAVA = Path(__file__).parent / "Upgrading.java"


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ExitStack() as stack:
        yield stack.enter_context(Server(tmp_path_factory.mktemp("upgrades"), "--loop", request.param))


def exchange(server: Server, *segments: bytes) -> bytes:
    """All that is answered to *segments*, of which each is sent a moment after the one before it."""
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = b""
        with suppress(ConnectionError):  # the gateway may hang up
            for segment in segments:
                peer.sendall(segment)
                time.sleep(PAUSE)
            while data := peer.recv(65536):
                found += data
        return found


def statuses(answers: bytes) -> list[int]:
    return [int(each[:3]) for each in answers.split(b"HTTP/1.1 ")[1:]]


def get(server: Server, path: str) -> object:
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=PATIENCE) as answer:
        return json.load(answer)


def contents(server: Server) -> list[object]:
    found = get(server, MESSAGES + "?order=desc&limit=2")
    assert isinstance(found, dict)
    return [each["content"] for each in found["messages"]]


def smuggled(server: Server) -> bool:
    listed = get(server, "/v1/channels?limit=256")
    assert isinstance(listed, dict)
    return any(each["name"] == "smuggled" for each in listed["channels"])


def post(headers: bytes, length: int, kind: bytes = b"text/plain", version: bytes = b"1.1") -> bytes:
    fields = b"Host: localhost\r\nContent-Type: " + kind + b"\r\nContent-Length: %d\r\n" % length
    return b"POST %b HTTP/%b\r\n%b%b\r\n" % (MESSAGES.encode(), version, fields, headers)


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET, b"Connection: upgrade\r\nUpgrade: tls/1.0\r\n"])
def test_the_body_of_a_request_that_asks_for_another_protocol_is_its_body(server: Server, upgrade: bytes) -> None:
    answers = exchange(server, post(upgrade, len(SMUGGLED)), SMUGGLED, LAST)
    assert statuses(answers) == [201, 200]
    assert contents(server)[0] == SMUGGLED.decode()
    assert not smuggled(server)


@pytest.mark.parametrize("cut", [0, 100, 1000])
def test_the_body_may_come_in_one_segment_with_other_requests(server: Server, cut: int) -> None:
    whole = post(H2C, len(SMUGGLED)) + SMUGGLED
    answers = exchange(server, (whole * 3 + LAST)[:cut], (whole * 3 + LAST)[cut:])
    assert statuses(answers) == [201, 201, 201, 200]
    assert contents(server) == [SMUGGLED.decode()] * 2
    assert not smuggled(server)


def test_the_body_may_come_in_chunks(server: Server) -> None:
    head = post(H2C, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    answers = exchange(server, head, b"%x\r\n" % len(SMUGGLED), SMUGGLED, b"\r\n0\r\n\r\n", LAST)
    assert statuses(answers) == [201, 200]
    assert contents(server)[0] == SMUGGLED.decode()


def test_the_body_may_be_of_http_1_0(server: Server) -> None:
    answers = exchange(server, post(H2C, len(SMUGGLED), version=b"1.0"), SMUGGLED)
    assert statuses(answers) == [201]
    assert contents(server)[0] == SMUGGLED.decode()


def test_the_body_may_be_lines(server: Server) -> None:
    lines = b'"one"\n"two"\n'
    answers = exchange(server, post(H2C, len(lines), b"application/x-ndjson"), lines, LAST)
    assert statuses(answers) == [200, 200]
    assert contents(server) == ["two", "one"]


def test_a_request_without_a_body_is_answered_as_if_it_asked_for_nothing(server: Server) -> None:
    asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + H2C + b"\r\n"
    answers = exchange(server, asked, asked * 2, LAST)
    assert statuses(answers) == [200] * 4
    assert b"101" not in answers


def test_the_body_of_a_websocket_handshake_is_not_parsed_as_a_request(server: Server) -> None:
    head = b"GET /relay HTTP/1.1\r\nHost: localhost\r\n" + WEBSOCKET + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED)
    for segments in ((head, SMUGGLED), (head + SMUGGLED,)):
        answers = exchange(server, *segments, LAST)
        assert len(statuses(answers)) <= 2
        assert not smuggled(server)


def test_a_tunnel_is_refused(server: Server) -> None:
    for target in (b"gateway.example:443", b"http://localhost/v1/channels/tunnel", b"/v1/channels/tunnel"):
        asked = b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
        assert statuses(exchange(server, asked, SMUGGLED, LAST))[0] in range(400, 500)
        assert not smuggled(server)


@pytest.mark.skipif(shutil.which("java") is None, reason="java is not installed")
@pytest.mark.slow
def test_javas_own_client_which_asks_for_http_2_publishes(server: Server) -> None:
    told = subprocess.run(
        ["java", str(JAVA), f"http://{server.http}{MESSAGES}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == ["201", "HTTP_1_1", "201", "HTTP_1_1", "200", "HTTP_1_1"]
    assert contents(server) == ["from java", "from java"]
