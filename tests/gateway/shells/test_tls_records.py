"""TLS that is decrypted a little at a time, on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop

from gateway.commands.certificates import dev_cert
from gateway.shells import tls_records
from gateway.shells.tls_records import MAX_READ, Charge, accept_tls

RECORDS = 10_000
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class DecryptedReceiver(asyncio.Protocol):
    """Keeps what arrives, by the turn of the loop in which it did."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.turns: list[int] = []
        self.turn = 0
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.turns.append(self.turn)
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self.turn += 1

    def connection_lost(self, _error: Exception | None) -> None:
        self.over.set()


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    dev_cert(folder=folder)
    return folder


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as found:
        yield found


def say(address: tuple[str, int], feed: Callable[[ssl.SSLSocket], None]) -> threading.Thread:
    """Connect with TLS in a thread, and let *feed* write."""

    def run() -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(socket.create_connection(address)) as client:
            feed(client)
            client.unwrap()  # closing before the gateway has read everything would reset the connection

    thread = threading.Thread(target=run)
    thread.start()
    return thread


async def receive(
    identity: Path, charges: tuple[Charge, Charge], feed: Callable[[ssl.SSLSocket], None]
) -> DecryptedReceiver:
    """Accept one connection, on which *feed* writes; return what received it when it has ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity / "cert.pem", identity / "key.pem")
    receiver = DecryptedReceiver()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        thread = say(listener.getsockname(), feed)
        peer, _ = await asyncio.get_running_loop().sock_accept(listener)
        await accept_tls(peer, receiver, context, charges, ssl_handshake_timeout=10.0, ssl_shutdown_timeout=1.0)
        await asyncio.wait_for(receiver.over.wait(), 60)
        thread.join()
    return receiver


def short_records(client: ssl.SSLSocket) -> None:
    """Write records of one byte each; what is written at once arrives at once."""
    for _ in range(RECORDS):
        client.send(b"x")


def test_short_records_are_decrypted_in_many_turns_and_charged(
    runner: asyncio.Runner, identity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_records, "CHEAP_SECONDS", 0.0)  # processors differ
    handshake: list[float] = []
    records: list[float] = []
    receiver = runner.run(receive(identity, (charging(handshake), charging(records)), short_records))
    assert b"".join(receiver.pieces) == b"x" * RECORDS
    assert max(map(len, receiver.pieces)) <= MAX_READ // 20  # each record takes 21 bytes or more beside its content
    long = [turn for turn, piece in zip(receiver.turns, receiver.pieces, strict=True) if len(piece) > 100]
    assert len(set(long)) == len(long)
    assert sum(handshake) > 0
    assert len(records) >= len(long) > 10
    assert all(records)


def charging(to: list[float], wait: float = 0.0) -> Charge:
    def charge(seconds: float) -> float:
        to.append(seconds)
        return wait

    return charge


def test_a_network_in_debt_is_read_later(
    runner: asyncio.Runner, identity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_records, "CHEAP_SECONDS", 0.0)
    times: list[float] = []

    async def run() -> DecryptedReceiver:
        def charge(_seconds: float) -> float:
            times.append(asyncio.get_running_loop().time())
            return 0.05

        return await receive(identity, (charging([]), charge), short_records)

    receiver = runner.run(run())
    assert b"".join(receiver.pieces) == b"x" * RECORDS
    assert len(times) > 5
    assert all(later - earlier > 0.04 for earlier, later in pairwise(times))


def test_long_records_are_read_whole_and_closing_twice_is_harmless(runner: asyncio.Runner, identity: Path) -> None:
    receiver = runner.run(
        receive(identity, (charging([]), charging([])), lambda client: client.sendall(b"y" * 999_999))
    )
    assert b"".join(receiver.pieces) == b"y" * 999_999
    transport = receiver.transport
    assert isinstance(transport, asyncio.Transport)
    transport.close()
    transport.close()
    assert transport.get_write_buffer_size() == 0
