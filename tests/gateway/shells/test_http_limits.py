"""The fast shell limits heads, bodies, pipelines and turns, and enforces penalties."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from gateway.core.buckets import TokenBuckets
from gateway.core.read_pacer import PENALTY_BURST, ReadPacer
from gateway.core.session import Session
from gateway.listeners.proxies import TrustedProxies
from gateway.shells import fast_shell, uvicorn_http
from gateway.shells.cpu_time import CpuTime
from tests.gateway.shells.fast_peers import (
    BRIEF,
    Echo,
    FastShell,
    HttpPeer,
    RecordingTransport,
    head,
    http_connection,
    new_bus,
    rest,
    take,
)

pytestmark = pytest.mark.usefixtures("allowed")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has to be whole, and an answer to be read, in a moment."""
    monkeypatch.setattr(HttpPeer, "head_seconds", BRIEF)
    monkeypatch.setattr(HttpPeer, "stalled_seconds", BRIEF)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_client_that_does_not_finish_a_request_is_dropped(server: FastShell, said: bytes) -> None:
    with server.connect() as peer:
        with suppress(ConnectionError):  # the machine may be slow
            peer.sendall(said)
        assert rest(peer) == b""


@pytest.mark.usefixtures("brief")
def test_a_client_that_does_not_finish_its_second_request_is_dropped(server: FastShell) -> None:
    said = b""
    while not said:  # where the machine was too slow for the first request, another time
        with server.connect() as peer, suppress(ConnectionError):
            peer.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\nGET /again")
            said = rest(peer)
    assert said.startswith(b"HTTP/1.1 404")


@pytest.mark.usefixtures("brief")
def test_an_answer_may_take_longer_than_a_request(server: FastShell) -> None:
    while True:
        begin = time.monotonic()
        with server.connect() as peer, suppress(ConnectionError):
            peer.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
            if time.monotonic() - begin > BRIEF / 2:  # the machine was too slow for the requests
                continue
            for _ in range(2):
                assert head(peer).startswith(b"HTTP/1.1 200")
                assert take(peer, 4) == b"done"
            return


@pytest.mark.parametrize(
    "fields", [b"X: " + b"x" * (1 << 20), b"".join(b"X%d: %s\r\n" % (i, b"x" * 1000) for i in range(70))]
)
def test_the_head_of_a_request_is_bounded(server: FastShell, allowed: set[str], fields: bytes) -> None:
    allowed.add("Invalid HTTP request received.")
    with server.connect() as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with suppress(ConnectionResetError, BrokenPipeError):
            peer.sendall(fields + b"\r\n\r\n")
        assert rest(peer)[:12] in (b"HTTP/1.1 431", b"")  # a reset may be faster


def test_nothing_is_written_behind_the_last_answer(server: FastShell, allowed: set[str]) -> None:
    allowed.add("Invalid HTTP request received.")
    with server.connect() as peer:
        fields = b"Host: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n"
        peer.sendall(b"POST /length HTTP/1.1\r\n" + fields + b"\r\nno chunk\r\n")
        assert rest(peer)[:12] == b"HTTP/1.1 400"


def test_the_head_limit_does_not_apply_to_bodies(server: FastShell) -> None:
    body = b"x" * 300_000
    request = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + body
    with server.connect() as peer:
        peer.sendall(request + request[:40])
        assert head(peer).startswith(b"HTTP/1.1 200")
        assert take(peer, 6) == b"300000"
        peer.sendall(request[40:])
        assert head(peer).startswith(b"HTTP/1.1 200")
        assert take(peer, 6) == b"300000"


@pytest.mark.slow
def test_pipelined_requests_are_answered_in_order_and_parsed_a_few_at_a_time(
    server: FastShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [0]
    parse = HttpPeer.parse

    def counting(self: HttpPeer, data: bytes) -> None:
        parse(self, data)
        waiting.append(len(self.pipeline))

    monkeypatch.setattr(HttpPeer, "parse", counting)
    bodies = [b"x" * (size % 700) for size in range(3000)]
    request = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
    said = b"".join(request % (len(body), body) for body in bodies)
    with server.connect() as peer:
        sender = threading.Thread(target=peer.sendall, args=(said,))
        sender.start()
        for body in bodies:
            assert head(peer).startswith(b"HTTP/1.1 200")
            assert take(peer, len(str(len(body)))) == b"%d" % len(body)
        sender.join()
    assert max(waiting) <= uvicorn_http.MAX_PIPELINE + uvicorn_http.HEAD_SLICE // 40


def test_small_chunks_are_parsed_a_few_at_a_time(server: FastShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the loop was as long as what was read."""
    slices, parse, parse_all = [0], HttpPeer.parse, HttpPeer._parse

    def counting(self: HttpPeer, data: bytes) -> None:
        slices[-1] += 1
        parse(self, data)

    def beginning(self: HttpPeer, data: bytes, at: int = 0) -> None:
        slices.append(0)
        parse_all(self, data, at)

    monkeypatch.setattr(HttpPeer, "parse", counting)
    monkeypatch.setattr(HttpPeer, "_parse", beginning)
    with server.connect() as peer:
        fields = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        peer.sendall(b"POST /length HTTP/1.1\r\n" + fields + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        assert head(peer).startswith(b"HTTP/1.1 200")
        assert take(peer, 5) == b"20000"
    assert max(slices) <= uvicorn_http.MAX_SLICES


def test_input_before_the_answer_is_not_read(server: FastShell) -> None:
    with server.connect() as peer:
        peer.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 1 << 26:
                sent += peer.send(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert sent < 1 << 25, "the sockets take some megabytes"


@pytest.mark.usefixtures("brief")
def test_a_client_that_reads_nothing_of_an_answer_is_cut(server: FastShell, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[tuple[str, int] | None] = []

    def connection_lost(self: HttpPeer, error: Exception | None) -> None:
        lost.append(self.client)
        uvicorn_http.FastHttp.connection_lost(self, error)

    monkeypatch.setattr(HttpPeer, "connection_lost", connection_lost)
    with server.connect() as peer:
        peer.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.eventually(lambda: peer.getsockname() in lost)
        left = 0
        with suppress(ConnectionError):
            while data := peer.recv(1 << 20):
                left += len(data)
        assert left < 1 << 28, "what the sockets held"


@pytest.mark.usefixtures("brief")
def test_a_disconnect_during_pipelined_answers_is_no_fault(
    server: FastShell, caplog: pytest.LogCaptureFixture, allowed: set[str]
) -> None:
    with server.connect() as peer:
        peer.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        peer.recv(1 << 20)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(2 * BRIEF)
    allowed.add("socket.send() raised exception.")  # what asyncio's own loop says of it
    assert "Exception in ASGI application" not in caplog.text


def test_postponed_input_is_parsed_before_more_is_read(sock: socket.socket, allowed: set[str]) -> None:
    """Also while the body of a request is asked for: megabytes were copied for each small request."""
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        nonlocal asked
        await receive()
        asked += 1
        await asyncio.sleep(60)

    async def check() -> None:
        http, transport = await http_connection(app, sock)
        http.data_received(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx" * 50)
        for _ in range(5):
            await asyncio.sleep(0)
        found = asked, transport.paused
        http.connection_lost(None)
        assert found == (1, True)

    asyncio.run(check())
    allowed.add("Exception in ASGI application\n")  # it was cancelled


def test_requests_on_busy_connections_have_a_turn_each_and_others_do_not_wait(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch, allowed: set[str]
) -> None:
    for module in ("turns", "step_times", "uvicorn_http"):
        monkeypatch.setattr(f"gateway.shells.{module}.perf_counter", lambda: 100.0)
    started: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        started.append(scope["path"])
        await asyncio.sleep(60)

    async def check() -> None:
        many = [await http_connection(app, sock) for _ in range(10)]
        for number, (http, _) in enumerate(many):
            seconds = 0.01 * (number > 0)
            http._usage.add(seconds, 100.0, CpuTime(seconds, seconds))
        for number, (http, _) in reversed(list(enumerate(many))):
            http.data_received(b"GET /%d HTTP/1.1\r\n\r\n" % number)
        await asyncio.sleep(0)
        assert started == ["/0"], "who asks for little is answered at once"
        while len(started) < len(many):
            before = len(started)
            for _ in range(3):  # at most: it gives way, it is started, it begins
                await asyncio.sleep(0)
            assert before < len(started) <= before + 3
        assert started == [f"/{number}" for number in (0, *range(9, 0, -1))]

    asyncio.run(check())
    allowed.add("Exception in ASGI application\n")  # they were cancelled


def test_a_request_over_a_limit_or_malformed_penalizes_its_connection(sock: socket.socket) -> None:
    statuses = iter((200, 404, 429, *[200] * 10))
    started = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        nonlocal started
        started += 1
        await send({"type": "http.response.start", "status": next(statuses), "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def check() -> None:
        http, _ = await http_connection(app, sock)
        now = 100.0
        read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: now), lambda: now)
        http.gateway = type("Gateway", (), {"bus": type("Bus", (), {"read_pacer": read_pacer})})  # type: ignore[assignment]
        for blamed in (False, False, True):
            http.data_received(b"GET / HTTP/1.1\r\n\r\n")
            for _ in range(3):
                await asyncio.sleep(0)
            assert read_pacer.is_penalized(http) == blamed
        read_pacer.charge_loop_time(http, PENALTY_BURST + 0.001)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == 3, "what it took is to be paid first"
        now += 1.0
        while started < 4:
            await asyncio.sleep(0.001)

    asyncio.run(check())


class Somewhere(Echo):
    """One whose connection counts for a network."""

    @property
    def network(self) -> str:
        return "192.0.2.1"


def test_a_penalized_client_that_reconnects_is_not_read_until_it_has_paid(sock: socket.socket) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        started.append(scope["path"])

    started = list[str]()
    let_in = SimpleNamespace(enter=lambda _: None, mark_busy=lambda _: None, leave=lambda _: None)

    async def check() -> None:
        bus = new_bus()
        bus.read_pacer = read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 100.0), lambda: 100.0)
        for _ in range(2):
            bad = Somewhere(bus)
            bad.record_malformed()
            read_pacer.charge_loop_time(bad, PENALTY_BURST + 0.005)
            read_pacer.connection_closed(bad)
        transport = RecordingTransport(sock)
        fast_shell.WebSocketProtocol(asyncio.get_running_loop(), set(), 1 << 20).start(transport, Somewhere(bus))
        assert transport.paused

        http, _ = await http_connection(app, sock)
        http.gateway = SimpleNamespace(admission=let_in, budget=read_pacer.budget, bus=bus, proxies=TrustedProxies(()))
        transport = RecordingTransport(sock)
        transport._extra["peername"] = ("192.0.2.1", 1)  # type: ignore[attr-defined]
        http.connection_made(transport)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.01)
        assert not started
        assert transport.paused

    asyncio.run(check())


@pytest.mark.parametrize("use_uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_new_session_of_a_penalized_network_is_not_read(use_uvloop: bool) -> None:
    async def check() -> None:
        bus, sessions = new_bus(), list[Somewhere]()
        bus.read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: 100.0), lambda: 100.0)
        bad = Somewhere(bus)
        bad.record_malformed()
        bus.read_pacer.charge_loop_time(bad, PENALTY_BURST + 1.0)
        bus.read_pacer.connection_closed(bad)

        def accept(address: str) -> Session:  # noqa: ARG001
            sessions.append(Somewhere(bus))
            return sessions[-1]

        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            port = await fast_shell.listen(accept, "127.0.0.1", 0, tasks=tasks, stack=stack)
            async with await anyio.connect_tcp("127.0.0.1", port) as peer:
                with anyio.move_on_after(0.5):  # its own buffers and the kernel's take some MiB
                    while True:
                        await peer.send(bytes(1 << 16))
            assert bus.read_pacer.budget.held < 1 << 16

    anyio.run(check, backend="asyncio", backend_options={"use_uvloop": use_uvloop})
