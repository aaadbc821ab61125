"""Answering a request is measured step by step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.shells.cpu_time import CpuTime
from gateway.shells.step_times import ObservedApp, TimedSteps

BEGUN = CpuTime(7.0, 8.0)


class StepRecorder:
    def __init__(self) -> None:
        self.steps = 0
        self.statuses: list[int] = []

    def begin_step(self) -> CpuTime:
        return BEGUN

    def worked(self, seconds: float, began: CpuTime | None) -> None:
        assert seconds >= 0
        assert began is BEGUN
        self.steps += 1

    def answered(self, status: int) -> None:
        self.statuses.append(status)


async def _receive() -> Any:
    await asyncio.sleep(0)
    return {"type": "http.request"}


def test_each_step_and_the_status_are_reported_to_the_observer() -> None:
    sent = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        assert (await receive())["type"] == "http.request"
        await asyncio.sleep(0.001)
        await send({"type": "http.response.start", "status": 429})
        await send({"type": "http.response.body"})

    async def send(message: Any) -> None:
        sent.append(message["type"])

    told = StepRecorder()
    asyncio.run(ObservedApp(app, told)({}, _receive, send))
    assert told.steps == 3
    assert told.statuses == [429]
    assert sent == ["http.response.start", "http.response.body"]


def test_failures_and_cancellation_pass_through() -> None:
    cleared = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleared.append(True)

    async def heals() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(60)
        await asyncio.sleep(0)

    async def run(coroutine: Any, told: StepRecorder) -> None:
        await TimedSteps(coroutine, told)

    async def check() -> None:
        told = StepRecorder()
        with pytest.raises(ZeroDivisionError):
            await run(fails(), told)
        assert told.steps == 2
        task = asyncio.create_task(run(waits(), told))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleared == [True]
        await run(heals(), told)

    asyncio.run(check())
