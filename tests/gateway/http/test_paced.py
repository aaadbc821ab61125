"""HTTP answers are generated as fast as they are read, and are complete, refused or visibly truncated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import Response

from gateway.access.authorization import KeyFile
from gateway.core import answer_scheduler
from gateway.core.answer_scheduler import AnswerScheduler
from gateway.core.errors import Forbidden, Throttled, Unavailable
from gateway.core.memory_budget import MemoryBudget
from gateway.core.message import Peer
from gateway.core.outbox import LOW_WATER
from gateway.core.read_pacer import ReadPacer
from gateway.http import paced, views
from gateway.http.history import SequenceQuery
from gateway.http.paced import run_in_turn

Events = list[dict[str, Any]]


@pytest.fixture
def run() -> Callable[[Callable[[AnswerScheduler], Awaitable[Any]]], Any]:
    """Runs a function of an `AnswerScheduler` on a loop of its own."""

    def at_once(call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def run(check: Callable[[AnswerScheduler], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            answers = AnswerScheduler(at_once, lambda _, call: at_once(call), lambda: 0, int)
            with anyio.fail_after(10):
                return await check(answers)

        return asyncio.run(main())

    return run


def counted(slices: Iterator[bytes], made: list[int]) -> Iterator[bytes]:
    for each in slices:
        made.append(len(each))
        yield each


async def told(response: Response, take: Callable[[], Awaitable[None]] | None = None) -> Events:
    """What *response* sends to a client that takes each event with *take*."""
    events: Events = []

    async def send(event: Any) -> None:
        events.append(event)
        if take is not None:
            await take()

    async def receive() -> Any:
        await anyio.sleep_forever()

    await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    return events


def anybody() -> None:
    """Everybody may read."""


def body(events: Events) -> bytes:
    return b"".join(event.get("body", b"") for event in events)


def test_unread_slices_are_not_generated(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "STALLED_SECONDS", 0.05)
    made: list[int] = []
    budget = MemoryBudget(1 << 30)
    held: list[int] = []

    async def check(answers: AnswerScheduler) -> Events:
        slices = counted((b"x" * LOW_WATER for _ in range(64)), made)
        response = await paced.paced_response(answers, budget, "a", slices, "text/plain", anybody)

        async def take() -> None:
            held.append(budget.held)
            if len(held) > 1:
                await anyio.sleep_forever()

        return await told(response, take)

    events = run(check)
    assert made == [LOW_WATER]
    assert held == [LOW_WATER, LOW_WATER], "the budget knows"
    assert budget.held == 0
    assert events[-1]["more_body"], "and it does not look whole"


def test_history_is_read_as_it_is_taken(run: Any, still: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(40):
        still.say(b'"%b"' % (b"x" * 60_000))
    still.sync()
    reads: list[int] = []
    history = still.gateway.index.history

    def read(*asked: Any, **more: Any) -> Any:
        reads.append(1)
        return history(*asked, **more)

    monkeypatch.setattr(still.gateway.index, "history", read)
    before: list[int] = []

    async def check(answers: AnswerScheduler) -> Events:
        query = SequenceQuery("lobby", 100, None, "asc", 0, None)
        response = await paced.paced_response(
            answers, None, "a", query.slices(still.gateway), "application/json", anybody
        )

        async def take() -> None:
            before.append(len(reads))

        return await told(response, take)

    events = run(check)
    assert before[:2] == [1, 1], "the first piece is read before anything is sent, and nothing more"
    assert before[-1] >= 20
    assert max(len(event.get("body", b"")) for event in events) <= paced.MAX_WRITE
    assert body(events).count(b'"sequence":') == 40
    assert body(events).endswith(b'],"next":null}')


def test_a_short_answer_is_an_ordinary_one_and_keeps_no_place(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS", 1)

    async def check(answers: AnswerScheduler) -> None:
        for _ in range(2):
            response = await paced.paced_response(answers, None, "a", iter([b"", b"a", b"b"]), "text/plain", anybody)
            assert response.headers["content-length"] == "2"
            assert body(await told(response)) == b"ab"

    run(check)


def test_long_answers_wait_for_each_other(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS_PER_NETWORK", 1)
    order: list[str] = []

    async def check(answers: AnswerScheduler) -> None:
        async def ask(name: str) -> None:
            slices = (b"x" * LOW_WATER for _ in range(3))
            response = await paced.paced_response(answers, None, "a", slices, "text/plain", anybody)
            order.append(f"{name} begins")
            assert len(body(await told(response))) == 3 * LOW_WATER
            order.append(f"{name} ends")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "first")
            tasks.start_soon(ask, "second")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answer_scheduler, "MAX_WAITING_PER_NETWORK", 0)
            patch.setattr(answer_scheduler, "MAX_SLOTS_PER_NETWORK", 0)
            with pytest.raises(Throttled) as refused:
                await ask("third")
        assert refused.value.retry_after_seconds == answer_scheduler.MAX_WAIT_SECONDS

    run(check)
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_an_early_failure_is_refused_and_a_later_one_is_cut_off(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS", 1)

    def fails(after: int) -> Iterator[bytes]:
        yield from [b"x" * LOW_WATER] * after
        raise Unavailable("the index cannot be read")

    async def check(answers: AnswerScheduler) -> Events:
        with pytest.raises(Unavailable):
            await paced.paced_response(answers, None, "a", fails(0), "text/plain", anybody)
        return await told(await paced.paced_response(answers, None, "a", fails(2), "text/plain", anybody))

    events = run(check)
    assert len(body(events)) == 2 * LOW_WATER
    assert events[-1]["more_body"]


def test_losing_the_right_visibly_truncates_an_answer(run: Any) -> None:
    made: list[int] = []
    rights: list[str] = []

    def ask() -> None:
        if not rights:
            raise Forbidden("history", "lobby")

    async def check(answers: AnswerScheduler) -> Events:
        slices = counted((b"x" * LOW_WATER for _ in range(9)), made)
        with pytest.raises(Forbidden):
            await paced.paced_response(answers, None, "a", slices, "text/plain", ask)
        rights.append("history")
        response = await paced.paced_response(answers, None, "a", slices, "text/plain", ask)

        async def take() -> None:
            if len(made) == 3:
                rights.clear()

        return await told(response, take)

    events = run(check)
    assert len(body(events)) == 3 * LOW_WATER
    assert events[-1]["more_body"], "half an answer must not look whole"
    assert len(made) == 3, "what nobody may have is not made"


def test_an_answer_released_by_the_budget_is_truncated(run: Any) -> None:
    budget = MemoryBudget(LOW_WATER // 2)

    async def check(answers: AnswerScheduler) -> Events:
        response = await paced.paced_response(
            answers, budget, "a", (b"x" * LOW_WATER for _ in range(9)), "text/plain", anybody
        )

        async def take() -> None:
            budget.audit()
            await anyio.sleep(0)

        return await told(response, take)

    assert not any(not event.get("more_body", True) for event in run(check))


def test_a_cancelled_waiter_costs_no_slice(run: Any) -> None:
    made: list[int] = []

    async def check(answers: AnswerScheduler) -> None:
        for _ in range(9):
            answers.schedule(lambda: None, "a")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_in_turn(answers, "a", partial(made.append, 1))
        assert await run_in_turn(answers, "a", lambda: "next") == "next"

    run(check)
    assert made == []


def test_writing_is_charged_as_time(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []

    async def check(answers: AnswerScheduler) -> None:
        monkeypatch.setattr(answers, "charge", spent.append)
        response = await paced.paced_response(
            answers, None, "a", (b"x" * LOW_WATER for _ in range(3)), "text/plain", anybody
        )
        await told(response)

    run(check)
    assert spent.count(LOW_WATER * answer_scheduler.WRITE_SECONDS) == 3


@pytest.mark.parametrize(("path", "until"), [("messages", 2), ("peers", 900)])
@pytest.mark.parametrize("lost", ["key", "grant"])
def test_a_reader_that_loses_its_right_gets_no_further_slices(
    path: str, until: int, lost: str, tmp_path: Path, make_local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add("k")
    local = make_local(auth={"grants": {"anonymous": ["*:*"]}})
    gateway, shown = local.gateway, list[int]()
    for number in range(1, 1001):
        gateway.bus.presence.announce_present("lobby", Peer(number, "toy", f"{number:200}"), 1 << 60)
    headers = {"Authorization": f"Bearer {secret}"} if lost == "key" else {}
    with httpx.Client(base_url=f"{local.url}/v1/channels/lobby", headers=headers, timeout=60) as http:
        for _ in range(4):
            assert http.post("/messages", content=json.dumps("x" * 60_000)).status_code == 201
        assert http.get(f"/{path}").json()

        def taken(show: Callable[..., Any], *given: Any) -> Any:
            shown.append(1)
            if len(shown) == until:
                (gateway.access.set_keys if lost == "key" else gateway.access.set_grants)({})
            return show(*given)

        for what in ("message", "peer"):
            monkeypatch.setattr(views, what, partial(taken, getattr(views, what)))
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            http.get(f"/{path}")
        assert http.get(f"/{path}").status_code == 401


def test_a_gateway_charges_long_answers_to_the_long_reads_of_their_network(
    make_still: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[str] = []
    monkeypatch.setattr(ReadPacer, "charge_answer", lambda _self, network, _seconds: charged.append(network))
    still = make_still()
    still.gateway.answer_scheduler.schedule(lambda: None, "192.0.2.1")
    still.drain()
    assert charged == ["192.0.2.1"]
