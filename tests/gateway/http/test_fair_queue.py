"""Expensive requests are charged and wait for one slot, in which networks take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from gateway.core.errors import Throttled
from gateway.help.routes import SEARCH_COST
from gateway.http import searches, sync
from gateway.http.fair_queue import RETRY_SECONDS, FairQueue
from tests.gateway.http.rest_requests import PATIENCE

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])
REQUESTS = [
    ("GET", "/v1/channels/lobby/messages?text=word", "", searches.COST),
    ("POST", "/v1/sync?channels=lobby", "", sync.COST),
    ("POST", "/v1/sync/differences?channels=lobby", "{}", sync.COST),
    ("POST", "/v1/sync/export?channels=lobby", '{"ids":[]}', sync.COST),
    ("GET", "/help/search.html?q=word", "", SEARCH_COST),
]


class Crowd:
    """Requests that wait in a queue, each named by its network and a number: who was served, and who was refused."""

    def __init__(self, max_waiting: int) -> None:
        self.queue = FairQueue(max_waiting)
        self.open = anyio.Event()  # ends the first turn
        self.served: list[str] = []
        self.refused: list[str] = []

    async def ask(self, name: str) -> None:
        try:
            async with self.queue.turn(name[0]):
                await self.open.wait()
                self.served.append(name)
        except Throttled:
            self.refused.append(name)

    async def come(self, *names: str) -> None:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(self.ask, name)
                await anyio.wait_all_tasks_blocked()
            self.open.set()


async def served_and_refused(max_waiting: int, *names: str) -> tuple[list[str], list[str]]:
    crowd = Crowd(max_waiting)
    await crowd.come(*names)
    return crowd.served, crowd.refused


@BOTH
def test_a_network_that_holds_the_whole_queue_yields_to_others(backend: str) -> None:
    names = ("a0", "a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3")
    served, refused = anyio.run(served_and_refused, 4, *names, backend=backend)
    assert served == ["a0", "a1", "b1", "a2", "b2"], "each keeps half of the queue, and they take turns"
    assert refused == ["a5", "a4", "a3", "b3"]


@BOTH
def test_no_request_is_evicted_if_all_networks_have_equal_shares(backend: str) -> None:
    served, refused = anyio.run(served_and_refused, 2, "a0", "b1", "c1", "d1", backend=backend)
    assert (served, refused) == (["a0", "b1", "c1"], ["d1"])


@BOTH
def test_one_network_may_use_all_free_slots(backend: str) -> None:
    served, refused = anyio.run(served_and_refused, 3, "a0", "a1", "a2", "a3", backend=backend)
    assert (served, refused) == (["a0", "a1", "a2", "a3"], [])


@pytest.mark.parametrize(("method", "path", "body", "cost"), REQUESTS, ids=[path for _, path, *_ in REQUESTS])
def test_an_expensive_request_is_charged_before_it_waits_for_its_network(
    make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: str, cost: int
) -> None:
    local, seen = make_local(log={"search": True}), list[tuple[str, float]]()

    @asynccontextmanager
    async def turn(_: FairQueue, network: str) -> AsyncIterator[None]:
        seen.append((network, 0))
        raise Throttled(RETRY_SECONDS)
        yield

    monkeypatch.setattr(FairQueue, "turn", turn)
    monkeypatch.setattr(local.gateway, "charge", lambda network, requests: seen.append((network, requests)))
    with httpx.Client(base_url=local.url, timeout=PATIENCE) as client:
        told = client.request(method, path, content=body)
    assert (told.status_code, told.headers["retry-after"]) == (429, "1")
    assert seen[-2:] == [("127.0.0.1", cost), ("127.0.0.1", 0)]
