"""Measures how long others wait for a turn of the event loop while something is done."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


@asynccontextmanager
async def turns_of_others(longest: list[float]) -> AsyncIterator[None]:
    """Append to *longest* the most CPU time, in seconds, between two turns of others in the context."""
    longest.append(0.0)

    async def others() -> None:
        before = time.thread_time()
        while True:
            await anyio.sleep(0)
            now = time.thread_time()
            longest[-1], before = max(longest[-1], now - before), now

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        await anyio.sleep(0)
        yield
        await anyio.sleep(0)
        tasks.cancel_scope.cancel()
