"""Listening on both shells: TCP and TLS, goodbyes, and what happens without file descriptors."""

from __future__ import annotations

import os
import resource
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import (
    contextmanager,
    suppress,
)
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.shells import connection, fast_shell, portable_shell, tcp_server
from tests.gateway.shells.toys import (
    ASYNCIO,
    FAST_WEBSOCKET,
    PATIENCE,
    SHELLS,
    TCP,
    TRIO,
    UVLOOP,
    WEBSOCKET,
    Client,
    LineClient,
    Shells,
    ShellServer,
    end,
    hear_all,
    run,
    tcp,
)

pytestmark = pytest.mark.usefixtures("_patience", "_quiet")


# Listening


@pytest.mark.parametrize("name", TCP | FAST_WEBSOCKET)
def test_all_peers_receive_goodbye_when_the_gateway_stops(name: str) -> None:
    running = run(*SHELLS[name], name in WEBSOCKET)
    server = next(running)
    with server.connect() as alice, server.connect() as bob:
        stopping = threading.Thread(target=next, args=(running, None))
        stopping.start()
        assert hear_all(alice) == hear_all(bob) == ([b"goodbye"], end(server, 1001))
    stopping.join()


@pytest.mark.parametrize("name", ["portable-tcp-asyncio", "portable-tcp-trio"])
def test_a_listener_survives_running_out_of_descriptors(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with contextmanager(run)(*TCP[name], False) as server, LineClient() as client:
        with no_descriptors():
            client.connect(server.port)
            deadline = time.monotonic() + PATIENCE
            while not caplog.records:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        client.say(b"echo alive")
        assert client.hear() == b"alive"
    assert {record.name for record in caplog.records} == {"gateway.shells.tcp_server"}
    caplog.clear()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Take what is left of them; the limit itself is lowered first, so that this is quick."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, limits[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in taken:
            os.close(number)


# TLS


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, today, today + timedelta(days=1))
    path = tmp_path_factory.mktemp("tls") / "identity.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    )
    return path


TLS: Shells = {
    "portable-asyncio": (ASYNCIO, tcp_server.listen),
    "portable-trio": (TRIO, tcp_server.listen),
    "fast-asyncio": (ASYNCIO, fast_shell.listen),
    "fast-uvloop": (UVLOOP, fast_shell.listen),
}


@pytest.fixture(params=TLS)
def secure(request: pytest.FixtureRequest, identity: Path) -> Iterator[ShellServer]:
    yield from _secure(request.param, identity, PATIENCE)


@pytest.fixture(params=TLS)
def hurried(request: pytest.FixtureRequest, identity: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShellServer]:
    """One that does not wait for handshakes."""
    for shell in (portable_shell, tcp_server, connection):
        monkeypatch.setattr(shell, "LINGER_SECONDS", 0.5)
    yield from _secure(request.param, identity, 0.5)


def _secure(name: str, identity: Path, seconds: float) -> Iterator[ShellServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity)
    backend, listen = TLS[name]
    tls = tcp_server.Handshakes(context, HANDSHAKES, timeout_seconds=seconds)
    yield from run(backend, partial(tcp, listen=listen, tls=tls), framed=False)
    assert HANDSHAKES.inside == 0


class Counting:
    """Counts the handshakes under way, and refuses more when it is full."""

    inside = 0
    entered = 0
    full = False

    def enter(self, address: str) -> str | None:
        assert address == "127.0.0.1"
        if self.full:
            return "too many"
        self.inside += 1
        self.entered += 1
        return None

    def leave(self, address: str) -> None:
        assert address == "127.0.0.1"
        self.inside -= 1


HANDSHAKES = Counting()


class Secure(LineClient):
    def connect(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket.connect(("127.0.0.1", port))
        self.socket = context.wrap_socket(self.socket)
        self.file = self.socket.makefile("rb")


def test_tls_carries_a_session_to_its_end(secure: ShellServer) -> None:
    with Secure(secure.port) as client:
        client.say(b"echo hello", b"size 300000", b"long 500")
        heard = [client.hear() for _ in range(502)]
        assert heard[:2] == [b"hello", b"x" * 300000]
        client.say(b"bye now")
        assert hear_all(client) == ([b"now"], 0)
        secure.eventually(lambda: secure.sessions[-1].over == 1)


def test_tls_peers_may_leave_as_they_like(secure: ShellServer) -> None:
    for leave in Client.reset, Client.__exit__:
        client = Secure(secure.port)
        client.say(b"long 100000")
        client.hear()
        leave(client)
        secure.eventually(lambda: secure.sessions[-1].over == 1)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000])
def test_an_unfinished_tls_handshake_is_dropped(hurried: ShellServer, said: bytes) -> None:
    with LineClient(hurried.port) as client:
        with suppress(ConnectionError):
            client.socket.sendall(said)
        with suppress(ConnectionError):
            while client.socket.recv(4096):
                pass
    assert hurried.sessions == []


def test_connections_in_a_tls_handshake_are_counted(hurried: ShellServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HANDSHAKES, "entered", 0)
    with LineClient(hurried.port), LineClient(hurried.port):
        hurried.eventually(lambda: HANDSHAKES.entered == 2)
        hurried.eventually(lambda: HANDSHAKES.inside == 0)
    monkeypatch.setattr(HANDSHAKES, "full", True)
    with LineClient(hurried.port) as client, suppress(ConnectionResetError):
        assert client.socket.recv(1) == b""
    assert hurried.sessions == []
