"""HTTP requests of one network get a share of the loop while other networks have input."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from itertools import chain, count, repeat
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.buckets import TokenBuckets
from gateway.core.read_pacer import SHARE_BURST, ReadPacer
from gateway.http.fast_publish import Answer
from gateway.shells.turns import LoopUsage
from gateway.shells.uvicorn_pacing import CONNECTION_SECONDS
from tests.gateway.shells.fast_peers import HANDSHAKE, HttpPeer, http_connection

pytestmark = pytest.mark.usefixtures("allowed")

NETWORK = "192.0.2.1"


async def one_of_two_networks(app: Any, sock: socket.socket, clock: Callable[[], float]) -> tuple[HttpPeer, ReadPacer]:
    """Return a connection, and what paces it since another network has input as well."""
    read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, clock), clock)
    read_pacer.record_bytes("192.0.2.2", 1, None)
    read_pacer.record_bytes(NETWORK, 1, None)
    return await paced_connection(app, sock, read_pacer), read_pacer


async def paced_connection(app: Any, sock: socket.socket, read_pacer: ReadPacer) -> HttpPeer:
    http, _ = await http_connection(app, sock)
    limits = SimpleNamespace(keep_alive_seconds=5)
    admission = SimpleNamespace(limits=limits, mark_busy=lambda _: None, mark_idle=lambda _: None, leave=lambda _: None)
    budget = SimpleNamespace(leave=lambda _: None)
    http.gateway = SimpleNamespace(bus=SimpleNamespace(read_pacer=read_pacer), admission=admission, budget=budget)
    http.network = NETWORK
    return http


def noting(started: list[str]) -> Any:
    """Return an application that notes in *started* what it is asked, and answers nothing."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.append(scope["path"])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    return app


def charges_of(read_pacer: ReadPacer, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list to which what a network is charged from now on is appended."""
    charged, charge = list[float](), read_pacer.charge_network

    def noted(network: str, seconds: float) -> float:
        if network:
            charged.append(seconds)
        return charge(network, seconds)

    monkeypatch.setattr(read_pacer, "charge_network", noted)
    return charged


def test_a_request_waits_while_its_network_has_taken_too_much_of_the_loop(sock: socket.socket) -> None:
    async def check() -> None:
        now, started = 100.0, list[str]()
        http, read_pacer = await one_of_two_networks(noting(started), sock, lambda: now)
        http.data_received(b"GET /1 HTTP/1.1\r\n\r\n")
        while not started:
            await asyncio.sleep(0)
        read_pacer.charge_network(http.network, SHARE_BURST * 1.02)
        http.data_received(b"GET /2 HTTP/1.1\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == ["/1"]
        now += 1.0
        while len(started) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(check())


def test_a_new_connection_waits_in_queue_because_it_may_become_a_websocket(sock: socket.socket) -> None:
    async def check() -> None:
        now, started = 100.0, list[str]()
        http, read_pacer = await one_of_two_networks(noting(started), sock, lambda: now)
        read_pacer.charge_network(http.network, SHARE_BURST * 1.02)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert http.has_unparsed
        now += 1.0
        while not started:
            await asyncio.sleep(0.001)
        assert not http.has_unparsed

    asyncio.run(check())


def test_new_connections_that_waited_do_not_begin_all_at_once(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a network could have any number of handshakes for one wait, and they would hold up everybody together."""
    parse = HttpPeer.parse

    async def check() -> None:
        now, parsed = 100.0, list[bytes]()
        first, read_pacer = await one_of_two_networks(noting([]), sock, lambda: now)

        def dear(self: HttpPeer, data: bytes) -> None:
            parsed.append(data[5:6])
            read_pacer.charge_network(NETWORK, SHARE_BURST)
            parse(self, data)

        monkeypatch.setattr(HttpPeer, "parse", dear)
        read_pacer.charge_network(NETWORK, SHARE_BURST * 1.02)
        connections = [first, *[await paced_connection(noting([]), sock, read_pacer) for _ in range(3)]]
        for number, http in enumerate(connections):
            http.data_received(b"GET /%d HTTP/1.1\r\n\r\n" % number)
        assert not parsed
        now += 0.1  # more than is owed
        while not parsed:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert parsed == [b"0"]
        connections[1].connection_lost(None)
        assert connections[1] not in connections[2]._queues._places
        now += 1.5
        read_pacer.record_bytes("192.0.2.2", 1, None)
        read_pacer.record_bytes(NETWORK, 1, None)
        while len(parsed) < 2:
            await asyncio.sleep(0.001)
        assert parsed == [b"0", b"2"], "who waits longest is next, unless it is gone"
        assert connections[3].has_unparsed

    asyncio.run(check())


def test_a_body_waits_while_its_network_is_in_debt(sock: socket.socket) -> None:
    """Else chunks of a byte each would have the loop to themselves once their request has begun."""

    async def check() -> None:
        now = 100.0
        http, read_pacer = await one_of_two_networks(noting([]), sock, lambda: now)
        http.data_received(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nx")
        assert not http.has_unparsed
        read_pacer.charge_network(NETWORK, SHARE_BURST * 1.02)
        http.data_received(b"x")
        assert http.has_unparsed
        now += 1.0
        while http.has_unparsed:
            await asyncio.sleep(0.001)

    asyncio.run(check())


def test_each_turn_of_a_long_body_checks_the_share_of_the_network(sock: socket.socket) -> None:
    """A busy connection has turns, and what it sent is parsed in them without being read again."""

    async def check() -> None:
        http, read_pacer = await one_of_two_networks(noting([]), sock, lambda: 100.0)
        http.data_received(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        http.data_received(b"1\r\nx\r\n" * 20_000)
        parsed = http._parsed_size
        http.take_turn()
        assert http._parsed_size > parsed
        read_pacer.charge_network(NETWORK, 2 * SHARE_BURST)
        parsed = http._parsed_size
        for _ in range(20):
            http.take_turn()
            await asyncio.sleep(0)
        assert http._parsed_size == parsed

    asyncio.run(check())


def test_a_request_with_a_fragmented_body_is_answered(sock: socket.socket) -> None:
    """It waits in the queue for its answer, and its body for the debt: neither may keep the other from going on."""

    async def check() -> None:
        now, bodies = 100.0, list[bytes]()

        async def app(_scope: Any, receive: Any, send: Any) -> None:
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body"):
                    break
            bodies.append(body)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

        http, read_pacer = await one_of_two_networks(app, sock, lambda: now)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        while not bodies:
            await asyncio.sleep(0.001)
        for body in (b"x", b"x\r\n1\r\n" * 20_000 + b"x"):
            read_pacer.charge_network(NETWORK, SHARE_BURST * 1.05)
            http.data_received(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            http.data_received(b"1\r\n" + body + b"\r\n0\r\n\r\n")
            await asyncio.sleep(0.01)
            before = len(bodies)
            async with asyncio.timeout(20):
                while len(bodies) == before:
                    now += 0.01
                    read_pacer.record_bytes("192.0.2.2", 1, None)
                    read_pacer.record_bytes(NETWORK, 1, None)
                    await asyncio.sleep(0.001)
            assert bodies[-1] == body.replace(b"\r\n1\r\n", b"")
        assert not http._queues._places

    asyncio.run(check())


def test_requests_admitted_at_once_take_turns(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many networks there are, of what waited one request at a time begins in an iteration of the loop."""

    async def check() -> None:
        now, started, networks = 100.0, list[str](), 20
        read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, lambda: now), lambda: now)
        connections = [await paced_connection(noting(started), sock, read_pacer) for _ in range(networks)]
        for number, http in enumerate(connections):
            http.network = f"192.0.2.{number}"
            read_pacer.record_bytes(http.network, 1, None)
            http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        while len(started) < networks:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(LoopUsage, "busy", True)
        started.clear()
        for http in connections:
            read_pacer.record_bytes(http.network, 1, None)
            read_pacer.charge_network(http.network, SHARE_BURST * 1.1)
            http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0)
        assert not started
        now += 0.5
        most = 0
        async with asyncio.timeout(20):
            while len(started) < networks:
                before = len(started)
                await asyncio.sleep(0)
                most = max(most, len(started) - before)
        assert most == 1

    asyncio.run(check())


def test_a_head_in_pieces_waits_with_each(sock: socket.socket) -> None:
    async def check() -> None:
        started = list[str]()
        http, read_pacer = await one_of_two_networks(noting(started), sock, lambda: 100.0)
        http.data_received(b"GET /1 HTTP/1.1\r\n\r\n")
        while not started or not http.cycle.response_complete:
            await asyncio.sleep(0)
        http.data_received(b"GET /2 HTTP/1.1\r\n")
        http.data_received(b"a: b\r\n")
        read_pacer.charge_network(NETWORK, 2 * SHARE_BURST)
        assert not http.has_unparsed
        http.data_received(b"x")
        assert http.has_unparsed

    asyncio.run(check())


def test_a_head_that_waits_with_each_byte_gets_no_more_time(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpPeer, "head_seconds", 0.5)

    async def check() -> None:
        first, read_pacer = await one_of_two_networks(noting([]), sock, perf_counter)
        http = await paced_connection(noting([]), sock, read_pacer)
        began, head = perf_counter(), chain(b"GET /", repeat(ord("a")))
        while not http.transport.is_closing():
            read_pacer.record_bytes("192.0.2.2", 1, None)
            byte = bytes((next(head),))
            first.data_received(byte)
            http.data_received(byte)
            assert http.has_unparsed, "each byte waits in the queue, which stops the timer of the head"
            await asyncio.sleep(0.05)
            assert perf_counter() < began + 20
        first.transport.abort()

    asyncio.run(check())


def test_a_bug_in_a_step_does_not_end_all_answers(sock: socket.socket) -> None:
    async def check() -> None:
        started = list[str]()
        http, _ = await one_of_two_networks(noting(started), sock, lambda: 100.0)
        with pytest.raises(ZeroDivisionError):
            http._measure(partial(divmod, 1, 0))
        http.data_received(b"GET /1 HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(20):
            while not started:
                await asyncio.sleep(0)
        assert started == ["/1"]

    asyncio.run(check())


def test_input_after_the_last_response_is_paced(sock: socket.socket) -> None:
    """It is discarded, but reading it takes time."""

    async def check() -> None:
        http, read_pacer = await one_of_two_networks(noting([]), sock, perf_counter)
        read_pacer.set_rate(TokenBuckets(1e6, 1, perf_counter))
        http._linger()
        http.data_received(b"x" * 100_000)
        assert not http.transport.is_reading()
        async with asyncio.timeout(20):
            while not http.transport.is_reading():
                await asyncio.sleep(0.01)
        http.data_received(b"x" * 100_000)
        http.transport.close()
        await asyncio.sleep(0.2)

    asyncio.run(check())


def test_a_disconnect_while_waiting_in_queue_is_noticed(sock: socket.socket) -> None:
    """A crowd that is not answered in time would otherwise wait behind the handshakes that it gave up, for ever."""

    async def check() -> None:
        http, read_pacer = await one_of_two_networks(noting([]), sock, lambda: 100.0)
        read_pacer.charge_network(NETWORK, 2 * SHARE_BURST)
        http.data_received(b"GET / HTTP/1.1\r\n")
        assert http.has_unparsed
        assert http.transport.is_reading(), "the end of the connection is read"
        http.data_received(b"x" * http.max_head)
        assert not http.transport.is_reading(), "what is kept is bounded"

    asyncio.run(check())


def test_a_handshake_is_charged_to_its_network_with_what_the_application_does(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    for module in ("step_times", "uvicorn_http"):
        monkeypatch.setattr(f"gateway.shells.{module}.perf_counter", lambda: float(next(ticks)))

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close"})

    async def check() -> None:
        http, read_pacer = await one_of_two_networks(app, sock, lambda: 100.0)
        charged = charges_of(read_pacer, monkeypatch)
        http.data_received(b"GET / HTTP/1.1\r\n" + HANDSHAKE + b"\r\n")
        parsing = sum(charged)
        assert parsing > 0
        for _ in range(3):
            await asyncio.sleep(0)
        assert sum(charged) > parsing

    asyncio.run(check())


def test_an_answer_that_is_written_later_is_charged(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        over = asyncio.Event()

        async def wait(_scope: Any, _receive: Any, _send: Any) -> None:
            await over.wait()

        http, read_pacer = await one_of_two_networks(wait, sock, lambda: 100.0)
        http.data_received(b"GET /1 HTTP/1.1\r\n\r\n")
        charged = charges_of(read_pacer, monkeypatch)
        http._write_answer(http.cycle, Answer(201, "application/json", b"{}"))
        assert http.cycle.response_complete
        assert sum(charged) > 0
        over.set()
        await asyncio.sleep(0.01)

    asyncio.run(check())


def test_a_connection_is_charged(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        http, read_pacer = await one_of_two_networks(noting([]), sock, lambda: 100.0)
        charged = charges_of(read_pacer, monkeypatch)
        http._pace_opened()
        assert sum(charged) == CONNECTION_SECONDS

    asyncio.run(check())
