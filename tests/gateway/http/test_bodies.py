"""Request bodies are counted in memory, processed in turns, and charged if they are malformed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from fastapi import Request

from gateway.core.buckets import TokenBuckets
from gateway.core.memory_budget import MemoryBudget
from gateway.core.read_pacer import MALFORMED_FACTOR, MIN_MALFORMED_SIZE, UNLIMITED, ReadPacer
from gateway.http import media
from gateway.http.bodies import ALLOWANCE, PACED_EXTENSION, SHARE, SHORT_BODY, BodyRefused, TurnQueue, read_body

PATIENCE = 30.0  # seconds
BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])
HEAD = b"POST /v1/channels/lobby/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


def free(budget: MemoryBudget | None = None) -> ReadPacer:
    """Nothing is paced."""
    return ReadPacer(None, lambda: 0.0, budget)


def request(chunks: Iterator[bytes], network: str = "192.0.2.1", **more: Any) -> Request:
    """A request whose body is all of *chunks*; between two of them others have a turn."""

    async def receive() -> dict[str, Any]:
        await anyio.sleep(0)
        chunk = next(chunks, None)
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    return Request({"type": "http", "headers": [], "client": (network, 1), **more}, receive)


def post(local: Any, body: bytes) -> int:
    """Publish *body* on a connection of its own; the status of the answer."""
    with httpx.Client(base_url=local.url, trust_env=False) as client:
        return client.post("/v1/channels/lobby/messages", content=body).status_code


class SleepClock:
    """Time that passes only where somebody sleeps, or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds
        await anyio.sleep(0)


@BOTH
def test_long_bodies_are_worked_off_one_at_a_time_and_networks_take_turns(backend: str) -> None:
    clock, order, now = SleepClock(), list[str](), list[int]()

    async def work(queue: TurnQueue, name: str, all_here: anyio.Event) -> None:
        async with queue.turn(name[0]):
            now.append(1)
            await all_here.wait()
            assert len(now) == 1, "nobody else works meanwhile"
            order.append(name)
            now.pop()

    async def run() -> None:
        queue, all_here = TurnQueue(clock, clock.sleep), anyio.Event()
        async with anyio.create_task_group() as tasks:
            for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
                tasks.start_soon(work, queue, name, all_here)
                await anyio.wait_all_tasks_blocked()
            all_here.set()

    anyio.run(run, backend=backend)
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_long_bodies_get_their_share_of_the_time() -> None:
    clock = SleepClock()

    async def run() -> None:
        queue = TurnQueue(clock, clock.sleep)
        for _ in range(100):
            async with queue.turn("a"):
                clock.now += 0.02

    anyio.run(run)
    assert clock.now == pytest.approx((100 * 0.02 - ALLOWANCE) / SHARE, rel=0.05)
    assert clock.slept > 0.7 * clock.now


@BOTH
def test_a_waiter_that_gives_up_takes_no_turn(backend: str) -> None:
    order: list[str] = []

    async def run() -> None:
        queue = TurnQueue()
        scopes, all_here = {name: anyio.CancelScope() for name in "abcd"}, anyio.Event()

        async def work(name: str) -> None:
            with scopes[name]:
                async with queue.turn(name):
                    await all_here.wait()
                    order.append(name)

        async with anyio.create_task_group() as tasks:
            for name in scopes:
                tasks.start_soon(work, name)
                await anyio.wait_all_tasks_blocked()
            scopes["b"].cancel()  # it waits
            scopes["a"].cancel()  # it has its turn
            scopes["c"].cancel()  # the turn is about to come to it
            all_here.set()
        with anyio.fail_after(PATIENCE):
            async with queue.turn("e"):
                order.append("e")

    anyio.run(run, backend=backend)
    assert order == ["d", "e"]


@BOTH
def test_a_body_counts_in_the_budget_while_it_comes_and_while_it_waits(backend: str) -> None:
    budget = MemoryBudget(10 << 20)
    held: list[int] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(4):
            held.append(budget.held)
            yield b"x" * SHORT_BODY

    async def take() -> None:
        async with read_body(request(chunks()), 1 << 20, free(budget)) as body:
            held.append(budget.held)
            assert len(body) == 4 * SHORT_BODY

    anyio.run(take, backend=backend)
    assert held == [0, SHORT_BODY, 2 * SHORT_BODY, 3 * SHORT_BODY, 4 * SHORT_BODY]
    assert budget.held == 0


@BOTH
def test_a_waiting_body_is_refused_if_memory_is_short(backend: str) -> None:
    budget = MemoryBudget(100 << 10)
    told: list[int] = []

    async def take(name: str) -> None:
        try:
            async with read_body(request(iter([b"x" * SHORT_BODY, name.encode()]), name), 1 << 20, free(budget)):
                budget.audit()
                budget.audit()
                await anyio.sleep(0.01)
                told.append(200)
        except BodyRefused as error:
            told.append(error.status)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for name in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
                tasks.start_soon(take, name)

    anyio.run(run, backend=backend)
    assert 503 in told
    assert 200 in told
    assert budget.held == 0


@pytest.mark.parametrize("counted", [True, False])
def test_bytes_of_bodies_are_paced_once_whichever_server_reads_them(counted: bool) -> None:
    levels = TokenBuckets(1e9, 1e9, lambda: 0.0)
    taken: list[float] = []
    spend = levels.spend
    levels.spend = lambda key, amount: (taken.append(amount), spend(key, amount))[1]  # type: ignore[method-assign,func-returns-value]
    extensions: dict[str, Any] = {"extensions": {PACED_EXTENSION: {}}} if counted else {}

    async def take() -> None:
        async with read_body(request(iter([b"123", b"45"]), **extensions), 9, ReadPacer(levels, lambda: 0.0)):
            pass

    anyio.run(take)
    assert sum(taken) == (0 if counted else 5)


@pytest.mark.parametrize(("error", "charged"), [(ValueError, True), (KeyError, False)])
def test_a_body_is_charged_to_its_network_if_it_is_malformed(error: type[Exception], charged: bool) -> None:
    pacer, charges = free(), list[tuple[str, int]]()
    pacer.charge_malformed_body = lambda network, size: charges.append((network, size))  # type: ignore[method-assign]

    async def take() -> None:
        async with read_body(request(iter([b"123", b"45"])), 9, pacer, (ValueError,)):
            raise error

    with pytest.raises(error):
        anyio.run(take)
    assert charges == ([("192.0.2.1", 5)] if charged else [])


@pytest.mark.parametrize("length", ["10", "9" * 5_000, "-1", "x", "١"])
def test_a_body_with_an_excessive_content_length_is_not_read(length: str) -> None:
    headers = [(b"content-length", length.encode())]

    async def take() -> None:
        def never() -> Iterator[bytes]:
            raise AssertionError
            yield b""

        async with read_body(request(never(), headers=headers), 9, None):
            pass

    with pytest.raises(BodyRefused) as refused:
        anyio.run(take)
    assert refused.value.status == 413


def test_a_body_read_by_uvicorn_is_counted_once(local: Any) -> None:
    size = 500_000
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as slow:
        slow.sendall(HEAD % (size + 1) + b"1" * size)
        deadline = time.monotonic() + PATIENCE
        while (held := local.gateway.budget.held) < size and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.02)
        assert size <= max(held, local.gateway.budget.held) < 1.2 * size


def test_an_unfinished_line_counts_and_is_refused_if_memory_is_short(local: Any) -> None:
    size = 300_000
    lines = HEAD.replace(b"Host", b"Content-Type: application/x-ndjson\r\nHost") % (2 * size)
    with socket.create_connection(("127.0.0.1", local.port), PATIENCE) as slow, slow.makefile("rb") as answer:
        slow.sendall(lines + b"1\n" + b"2" * size)
        deadline = time.monotonic() + PATIENCE
        while (held := local.gateway.budget.held) < size and time.monotonic() < deadline:
            time.sleep(0.005)
        assert size <= held < 1.2 * size
        local.gateway.budget.limit = size // 2
        text = b"".join(iter(answer.readline, b"0\r\n"))
        assert text.count(b'"sequence"') == 1
        assert b'"status":503,"detail":"the gateway is short of memory' in text
        assert b'"line":2' in text


def test_the_server_works_off_one_long_body_at_a_time(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parse_content, now, most = media.parse_content, list[int](), list[int]()

    def counted(body: bytes) -> Any:
        now.append(1)
        most.append(len(now))
        try:
            time.sleep(0.02)
            return parse_content(body)
        finally:
            now.pop()

    monkeypatch.setattr(media, "parse_content", counted)
    body = b'"' + b"x" * SHORT_BODY + b'"'
    with ThreadPoolExecutor(4) as clients:
        assert list(clients.map(partial(post, local), [body] * 4)) == [201] * 4
    assert max(most) == 1


# What malformed bodies cost


def test_a_malformed_body_counts_for_its_network_as_more_than_its_bytes() -> None:
    levels = TokenBuckets(1.0, MALFORMED_FACTOR * MIN_MALFORMED_SIZE * 2, lambda: 0.0)
    read_pacer = ReadPacer(levels, lambda: 0.0)
    read_pacer.charge_malformed_body("192.0.2.1", 1)
    assert read_pacer.record_bytes("192.0.2.1", 0, None) == 0
    read_pacer.charge_malformed_body("192.0.2.1", MIN_MALFORMED_SIZE)
    read_pacer.charge_malformed_body("", UNLIMITED)  # a link has no network, and is nobody's to slow
    assert read_pacer.record_bytes("192.0.2.1", 1, None) > 0
    assert read_pacer.record_bytes("192.0.2.2", 1, None) == 0


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * SHORT_BODY + b"["])
def test_malformed_bodies_slow_their_network_down_also_with_a_connection_for_each(
    make_local: Callable[..., Any], content: bytes
) -> None:
    local = make_local(
        limits={
            "rates": "on",
            "bytes": {
                "rate": 4 * MALFORMED_FACTOR * MIN_MALFORMED_SIZE,
                "burst": 2 * MALFORMED_FACTOR * MIN_MALFORMED_SIZE,
            },
        }
    )
    assert [post(local, b"1") for _ in range(5)] == [201] * 5
    assert local.gateway.bus.read_pacer.record_bytes("127.0.0.1", 0, 0) == 0, "they owe nothing"
    good = time.monotonic()
    assert [post(local, content) for _ in range(5)] == [400] * 5
    assert time.monotonic() - good > 0.5
