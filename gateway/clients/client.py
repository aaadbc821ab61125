"""What all clients have in common."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

import httpx

WAIT = 10.0  # seconds for anything that should take a moment

_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that a client received, to everybody or to it alone; *raw* is its form in the protocol."""

    channel: str
    content: Any
    direct: bool = False
    raw: Any = field(default=None, compare=False)


class Client(ABC):
    """One peer of the gateway at *http*: `HOST:PORT`, or a URL. What it is told is put into `heard`, in order.

    *key* is an API key.
    """

    protocol: ClassVar[str]

    def __init__(self, http: str, key: str | None = None) -> None:
        self.url = http.rstrip("/") if "://" in http else f"http://{http}"
        self.key = key
        self.heard: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.close()

    @property
    def rest(self) -> httpx.AsyncClient:
        """A client of the gateway's REST interface, for what the protocol itself has no words for."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=WAIT, verify=trust())

    async def next(self, wait: float = WAIT) -> ReceivedMessage:
        """The next thing the peer is told; `TimeoutError` after *wait* seconds."""
        return await asyncio.wait_for(self.heard.get(), wait)

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Hang up."""

    @abstractmethod
    async def subscribe(self, channel: str) -> None:
        """Hear *channel* from when this returns."""

    @abstractmethod
    async def say(self, channel: str, content: Any) -> None:
        """Say *content* to everybody in *channel*."""

    @abstractmethod
    async def _listen(self) -> None:
        """Put what arrives into `heard`."""


def dumps(value: Any) -> str:
    """*value* as JSON; escaped only if it has a lone surrogate, which UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _HALF.search(text) else text


@cache
def trust() -> ssl.SSLContext:
    """The system's certificate authorities; loaded once, because that takes longer than most requests."""
    return ssl.create_default_context()
