"""Answers of REST to whoever has a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from tests.server import Server


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


class Rest:
    """Asks one gateway, as whoever has the *key*."""

    def __init__(self, server: Server, key: str | None = None) -> None:
        self._url = f"http://{server.http}"
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def get(self, path: str, status: int = 200) -> Any:
        response = httpx.get(self._url + path, headers=self._headers, timeout=10)
        assert response.status_code == status, response.text
        return response.json()

    def eventually(self, path: str, true: Callable[[Any], bool]) -> Any:
        """The answer as soon as it is *true*."""
        ends = time.monotonic() + 10
        while not true(answer := self.get(path)):
            assert time.monotonic() < ends, answer
            time.sleep(0.02)
        return answer
