"""A hostile gateway causes clear errors in the client, which bounds its memory and its time."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import repeat

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from gateway.client import NotAGateway, TrellisClient, TrellisError, Unreachable
from gateway.client import transport as transports
from gateway.client.sse import MAX_EVENT, EventReader

pytestmark = pytest.mark.anyio

MIB = 1 << 20
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

Says = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def gateway(says: Says) -> AsyncIterator[TrellisClient]:
    """A client of somebody who answers every request by *says*."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await says(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        async with TrellisClient(f"127.0.0.1:{port}", timeout=5.0, retry_seconds=0) as client:
            yield client
        tasks.cancel_scope.cancel()


def body(data: bytes, more: bytes = b"") -> Says:
    """An answer with this body."""
    return lambda stream: stream.send(OK + more + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))


def endless(head: bytes, part: bytes) -> Says:
    """An answer without an end."""

    async def say(stream: SocketStream) -> None:
        await stream.send(head)
        for each in repeat(part):
            await stream.send(each)

    return say


async def asked(client: TrellisClient) -> None:
    await client.channel("talk")


async def heard(client: TrellisClient) -> None:
    async with client.subscribe("talk") as subscription:
        async for _ in subscription:
            pass


BOMB = gzip.compress(bytes(50 * MIB))
PAGE = json.dumps({"channels": [], "next": "http://127.0.0.1:9/v1/elsewhere"}).encode()
CASES = {
    "an endless body": (endless(OK + b"\r\n", bytes(1 << 16)), asked, NotAGateway),
    "an endless head": (endless(OK, b"X: y\r\n" * 1000), asked, Unreachable),
    "an endless line of the head": (endless(OK + b"X: ", b"y" * (1 << 16)), asked, Unreachable),
    "a compression bomb": (body(BOMB, b"Content-Encoding: gzip\r\n"), asked, NotAGateway),
    "brackets": (body(b"[" * MIB), asked, NotAGateway),
    "millions of values": (body(b"[" + b"[]," * 5_000_000 + b"0]"), asked, NotAGateway),
    "another value": (body(b"[1]"), asked, NotAGateway),
    "another value than a problem": (
        lambda stream: stream.send(
            b"HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\n\r\n"
            b'{"status":"x","line":[],"detail":{}}'
        ),
        asked,
        TrellisError,
    ),
    "a page elsewhere": (body(PAGE), lambda client: anext(client.channels()), NotAGateway),
    "events without an end": (endless(EVENTS, b"data: " + b"x" * (1 << 16)), heard, NotAGateway),
    "an event of many lines": (endless(EVENTS, b"data: x\n" * 8_000), heard, NotAGateway),
    "an event of brackets": (endless(EVENTS, b"event: message\ndata: " + b"[" * MIB + b"\n\n"), heard, NotAGateway),
    "an event of nothing": (endless(EVENTS, b"event: message\ndata: {}\nid: x\n\n"), heard, NotAGateway),
    "compressed events": (endless(EVENTS[:-2] + b"Content-Encoding: gzip\r\n\r\n", BOMB), heard, NotAGateway),
    "an endless refusal": (endless(b"HTTP/1.1 403 Forbidden\r\n\r\n", bytes(1 << 16)), heard, NotAGateway),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_answers_of_a_hostile_gateway_are_bounded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "MAX_ANSWER", 16 * MIB)
    says, ask, error = CASES[case]
    async with gateway(says) as client:
        tracemalloc.start()
        try:
            with anyio.fail_after(30), pytest.raises(error):
                await ask(client)
            assert tracemalloc.get_traced_memory()[1] < 100 * MIB
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("drop", [b"\n", b"HTTP/1.1 100 Continue\r\n\r\n", OK[:20]], ids=["blank", "continue", "head"])
async def test_a_dripping_answer_times_out(drop: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "PATIENCE", 0.1)

    async def drip(stream: SocketStream) -> None:
        if drop == b"\n":
            await stream.send(OK + b"\r\n")
        while drop != OK[:20]:
            await stream.send(drop)
            await anyio.sleep(0.01)
        for byte in OK + b"X: " + b"y" * 10_000:
            await stream.send(bytes((byte,)))
            await anyio.sleep(0.01)

    async with gateway(drip) as client:
        with anyio.fail_after(20), pytest.raises(Unreachable, match="does not end its answer"):
            await asked(client)


def test_a_long_line_takes_linear_time() -> None:
    reader = EventReader()
    for _ in range(MAX_EVENT // 100 - 1):  # 160,000 pieces: to look through all of it for each would take hours
        assert reader.receive_data(b"x" * 100) == []
    with pytest.raises(ValueError, match="too long"):
        reader.receive_data(b"x" * 200)
