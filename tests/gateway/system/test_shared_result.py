"""One computation serves all callers that wait for its result."""

from __future__ import annotations

from time import monotonic

import anyio
import pytest

from gateway.system.shared_result import SharedResult

INTERVAL = 0.1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_waiting_callers_share_a_result_newer_than_their_call(backend: str) -> None:
    begun, got = list[float](), list[int]()

    async def check() -> None:
        asked, finish = anyio.Event(), anyio.Event()

        async def make() -> int:
            begun.append(monotonic())
            asked.set()
            await finish.wait()
            return len(begun)

        shared = SharedResult(make, INTERVAL)

        async def ask() -> None:
            got.append(await shared.get())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await asked.wait()  # the first result is being made: it may be older than what follows
            for _ in range(10):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            finish.set()
        assert got == [1] + [2] * 10
        assert begun[1] - begun[0] >= INTERVAL

    anyio.run(check, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_failure_or_a_cancelled_caller_does_not_affect_other_callers(backend: str) -> None:
    begun = list[int]()

    async def check() -> None:
        leaving = anyio.CancelScope()

        async def make() -> int:
            begun.append(len(begun))
            if len(begun) == 1:
                raise ZeroDivisionError
            if len(begun) == 2:
                leaving.cancel()
            await anyio.sleep(0.01)
            return len(begun)

        shared = SharedResult(make, 0.0)
        with pytest.raises(ZeroDivisionError):
            await shared.get()
        with leaving:
            await shared.get()
        assert await shared.get() == 3

    anyio.run(check, backend=backend)
