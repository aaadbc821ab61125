"""The base class of all clients."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

import httpx

WAIT = 10.0  # seconds for anything that usually takes milliseconds


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that a client received, to everybody or to it alone; *raw* is its form in the protocol."""

    channel: str
    content: Any
    direct: bool = False
    raw: Any = field(default=None, compare=False)


class Client(ABC):
    """A peer of the gateway at *http* (`HOST:PORT`, or a URL); `received` has the messages that it receives.

    *key* is an API key.
    """

    protocol: ClassVar[str]

    def __init__(self, http: str, key: str | None = None) -> None:
        self.url = http.rstrip("/") if "://" in http else f"http://{http}"
        self.key = key
        self.received: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
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
        """A new client of the gateway's REST interface, for requests that the protocol itself does not have."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=WAIT, verify=trust())

    async def next(self, wait: float = WAIT) -> ReceivedMessage:
        """Return the next message that the peer receives; raise `TimeoutError` after *wait* seconds."""
        return await asyncio.wait_for(self.received.get(), wait)

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    async def subscribe(self, channel: str) -> None:
        """Subscribe to *channel*; messages published after this returns are received."""

    @abstractmethod
    async def publish(self, channel: str, content: Any) -> None:
        """Publish *content* on *channel*."""

    @abstractmethod
    async def _listen(self) -> None:
        """Put what arrives into `received`."""


@cache
def trust() -> ssl.SSLContext:
    """Return a TLS context with the system's certificate authorities; cached, because loading them is slow."""
    return ssl.create_default_context()
