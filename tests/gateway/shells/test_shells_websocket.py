"""Every shell that carries WebSockets keeps the rules of that protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import websockets.sync.client

from tests.gateway.shells.toys import (
    FAST_WEBSOCKET,
    HYPERCORN,
    PATIENCE,
    SHELLS,
    WEBSOCKET,
    Framed,
    Shells,
    ShellServer,
    hear_all,
    run,
    write_until_stuck,
)

pytestmark = pytest.mark.usefixtures("_patience", "_quiet")


def only(shells: Shells) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", shells, indirect=True, scope="module")


@pytest.fixture(params=SHELLS, scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ShellServer]:
    backend, shell = SHELLS[request.param]
    yield from run(backend, shell, request.param in WEBSOCKET)


@pytest.fixture
def peer(server: ShellServer) -> Iterator[Framed]:
    with server.connect() as client:
        assert isinstance(client, Framed)
        yield client


@only(WEBSOCKET)
def test_the_websockets_library_is_understood(server: ShellServer) -> None:
    with websockets.sync.client.connect(f"ws://127.0.0.1:{server.port}/", compression=None) as client:
        client.send("echo é")
        assert client.recv(PATIENCE) == "é"
        client.send(["ec", "ho ", "x" * 200_000, ""])
        assert client.recv(PATIENCE) == "x" * 200_000
        assert client.ping().wait(PATIENCE)
        client.send("bye now")
        assert client.recv(PATIENCE) == "now"
        with pytest.raises(websockets.ConnectionClosedError) as caught:
            client.recv(PATIENCE)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4000, "bye")


@only(WEBSOCKET)
@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x0f\xa0so long"])
def test_a_close_is_answered(server: ShellServer, peer: Framed, payload: bytes) -> None:
    peer.socket.sendall(peer.wrap(payload, 0x88))
    head = peer.file.read(2)
    assert head[0] == 0x88
    assert peer.file.read(head[1])[:2] == payload[:2]
    assert peer.file.read() == b""
    server.eventually(lambda: peer.session.over == 1)


@only(WEBSOCKET)
@pytest.mark.usefixtures("server")
def test_fragments_of_one_byte(peer: Framed) -> None:
    text = b"echo " + "é".encode() * 200
    pieces = [peer.wrap(text[i : i + 1], 0x00) for i in range(1, len(text))]
    peer.socket.sendall(peer.wrap(text[:1], 0x01) + b"".join(pieces) + peer.wrap(b"ping", 0x89) + peer.wrap(b"", 0x80))
    assert peer.hear() == "é".encode() * 200
    assert peer.pongs == [b"ping"]


@only(WEBSOCKET)
@pytest.mark.usefixtures("server")
def test_a_binary_message_is_taken_as_text(peer: Framed) -> None:
    peer.socket.sendall(peer.wrap(b"echo a\xffb", 0x82) + peer.wrap(b"echo c", 0x82))
    assert [peer.hear(), peer.hear()] == ["a\ufffdb".encode(), b"c"]


@only(FAST_WEBSOCKET | HYPERCORN)
def test_a_message_over_the_limit(server: ShellServer, peer: Framed) -> None:
    peer.say(b"echo " + b"x" * ((1 << 20) - 5))
    assert peer.hear() == b"x" * ((1 << 20) - 5)
    peer.say(b"echo before")
    peer.socket.sendall(peer.wrap(b"echo " + b"x" * ((1 << 20) - 4)))
    assert hear_all(peer) == ([b"before"], 1009)
    server.eventually(lambda: peer.session.over == 1)


@only(FAST_WEBSOCKET)
@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x81\x81\0\0\0\0\xff", 1007), (b"\x83\x80\0\0\0\0", 1002), (b"\x81\x00", 1002), (b"\x88\x81\0\0\0\0\0", 1002)],
)
def test_a_malformed_frame_closes_with_its_code_after_earlier_answers(
    server: ShellServer, peer: Framed, data: bytes, code: int
) -> None:
    peer.socket.sendall(peer.wrap(b"echo before") + data)
    assert hear_all(peer) == ([b"before"], code)
    server.eventually(lambda: peer.session.over == 1)


@only(FAST_WEBSOCKET)
def test_a_peer_that_sends_more_after_its_close_gets_every_answer(server: ShellServer, peer: Framed) -> None:
    """Closing a socket with unread input resets the connection, and what the peer has not received yet is lost."""
    more = peer.wrap(b"more") * 100_000
    peer.socket.sendall(peer.wrap(b"echo " + b"x" * 500_000) + peer.wrap(b"\x03\xe8", 0x88) + more)
    assert hear_all(peer) == ([b"x" * 500_000], 1000)
    server.eventually(lambda: peer.session.over == 1)


@only(FAST_WEBSOCKET)
def test_nothing_is_compressed(server: ShellServer) -> None:
    with Framed(server.port, b"Sec-WebSocket-Extensions: permessage-deflate\r\n") as client:
        assert b"extensions" not in client.head.lower()


@only(FAST_WEBSOCKET)
def test_a_peer_that_pings_but_does_not_read_is_not_read(server: ShellServer, peer: Framed) -> None:
    ping = peer.wrap(b"." * 125, 0x89)
    pongs, rest = divmod(write_until_stuck(peer, ping), len(ping))
    with server.connect() as other:
        other.say(b"echo alive")
        assert other.hear() == b"alive"
    answers = (b"\x8a\x7d" + b"." * 125) * (pongs + 1)
    rest_of_it = threading.Thread(target=peer.socket.sendall, args=(ping[rest:] + peer.wrap(b"echo done"),))
    rest_of_it.start()
    assert peer.file.read(len(answers)) == answers
    assert peer.hear() == b"done"
    rest_of_it.join()
