"""The courier takes short turns of the loop, however many webhooks there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from gateway.webhooks.backlog import PAGE, BacklogEntry
from gateway.webhooks.courier import STEP, Courier
from gateway.webhooks.delivery import Delivery
from gateway.webhooks.model import Webhook
from gateway.webhooks.pauses import matching
from tests.turns_of_others import turns_of_others

COUNT = 1_000


@pytest.fixture
def courier(make_still: Callable[..., Any]) -> Courier:
    """One with many idle webhooks; the last page of its log has many channels, of which every other one matches."""
    courier, end = Courier(make_still().gateway), PAGE - 1
    page = [BacklogEntry(seq, 0, f"channel{seq}") for seq in range(1, PAGE)]
    courier.backlog = SimpleNamespace(end=end, page=lambda _after: (page, end))  # type: ignore[assignment]
    for n in range(COUNT):
        webhook = Webhook(f"wh_{n}", "https://example.com/", "channel7" if n % 2 else "other", 1, None, 0)
        delivery = courier._deliveries[webhook.id] = Delivery(webhook, courier)
        delivery.idle = True
    return courier


def test_a_search_looks_at_a_few_webhooks_in_each_turn_of_the_loop(
    courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at once held everybody up for 166 ms."""
    looked, most, matches = list[str](), list[int](), Webhook.matches

    def counted(webhook: Webhook, channel: str) -> bool:
        looked.append(webhook.id)
        return matches(webhook, channel)

    async def count_turns() -> None:
        while True:
            most.append(len(set(looked)))
            looked.clear()
            await anyio.sleep(0)

    async def search() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            await courier._search()
            tasks.cancel_scope.cancel()

    monkeypatch.setattr(Webhook, "matches", counted)
    anyio.run(search)
    assert max(most) <= STEP
    deliveries = courier._deliveries.values()
    assert [each.idle for each in deliveries] == [True, False] * (COUNT // 2)
    assert {each.webhook.position for each in deliveries if each.idle} == {PAGE - 1}


def test_a_webhook_that_becomes_idle_during_a_search_misses_nothing(courier: Courier) -> None:
    """It searched further than the page that is being looked at, so that page has nothing for it."""
    first, *_, last = courier._deliveries.values()
    first.idle = last.idle = False

    async def become_idle() -> None:
        for each in (first, last):
            each.scanned = each.webhook.position = courier.backlog.end + 5
            each.idle = True

    async def search() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(become_idle)
            await courier._search()

    anyio.run(search)
    assert first.webhook.position == courier.backlog.end + 5
    assert (last.idle, first.idle) == (False, True), "at most it searches again"


HARD = "*" + "[ab]" * 120 + "c"  # compared with a name of 255 letters `a` in 0.2 ms
NAMES = [BacklogEntry(seq, 0, f"{'a' * 250}{seq:05}") for seq in range(1, PAGE)]


def longest_step(work: Callable[[], Awaitable[object]]) -> float:
    """The CPU time in seconds between two turns of others while *work* is done; the least of some tries."""
    longest = list[float]()

    async def run() -> None:
        async with turns_of_others(longest):
            await work()

    for _ in range(3):
        anyio.run(run)
    return min(longest)


def test_patterns_that_take_long_are_compared_in_many_turns(courier: Courier) -> None:
    """A page took 57 ms for one webhook, and 850 ms for the `STEP` that are looked at together."""
    courier.backlog = SimpleNamespace(end=PAGE - 1, page=lambda _after: (NAMES, PAGE - 1))  # type: ignore[assignment]
    hard = [Webhook(f"wh_{n}", "https://example.com/", HARD, 1, None, 0) for n in range(4)]
    courier._deliveries = {webhook.id: Delivery(webhook, courier) for webhook in hard}

    async def search() -> None:
        courier._head = 0
        for each in courier._deliveries.values():
            each.idle, each.scanned = True, 0
        await courier._search()

    async def page() -> None:
        assert not await matching(hard[0], [place.channel for place in NAMES])

    assert longest_step(search) < 0.02
    assert longest_step(page) < 0.02
    assert {each.scanned for each in courier._deliveries.values()} == {PAGE - 1}
