"""HTTP requests of one network get a share of the loop while other networks have input."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.buckets import TokenBuckets
from gateway.core.read_pacer import NETWORK_BURST, ReadPacer
from tests.gateway.shells.fast_peers import HttpPeer, http_connection

pytestmark = pytest.mark.usefixtures("allowed")


async def one_of_two_networks(app: Any, sock: socket.socket, clock: Callable[[], float]) -> tuple[HttpPeer, ReadPacer]:
    """Return a connection, and what paces it since another network has input as well."""
    http, _ = await http_connection(app, sock)
    read_pacer = ReadPacer(TokenBuckets(1e9, 1e9, clock), clock)
    admission = SimpleNamespace(mark_busy=lambda _: None, mark_idle=lambda _: None, leave=lambda _: None)
    http.gateway = SimpleNamespace(bus=SimpleNamespace(read_pacer=read_pacer), admission=admission)
    http.network = "192.0.2.1"
    read_pacer.record_bytes("192.0.2.2", 1, None)
    read_pacer.record_bytes(http.network, 1, None)
    return http, read_pacer


def noting(started: list[str]) -> Any:
    """Return an application that notes in *started* what it is asked, and answers nothing."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.append(scope["path"])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    return app


def test_a_request_waits_while_its_network_has_taken_too_much_of_the_loop(sock: socket.socket) -> None:
    async def check() -> None:
        now, started = 100.0, list[str]()
        http, read_pacer = await one_of_two_networks(noting(started), sock, lambda: now)
        http.data_received(b"GET /1 HTTP/1.1\r\n\r\n")
        while not started:
            await asyncio.sleep(0)
        read_pacer.charge_network(http.network, NETWORK_BURST * 1.02)
        http.data_received(b"GET /2 HTTP/1.1\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == ["/1"]
        now += 1.0
        while len(started) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(check())


def test_so_does_a_new_connection_which_may_become_a_websocket(sock: socket.socket) -> None:
    async def check() -> None:
        started = list[str]()
        http, read_pacer = await one_of_two_networks(noting(started), sock, perf_counter)
        read_pacer.charge_network(http.network, NETWORK_BURST * 1.02)
        http.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert http.has_unparsed
        while not started:
            await asyncio.sleep(0.001)
        assert not http.has_unparsed

    asyncio.run(check())
