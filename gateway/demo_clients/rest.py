"""A client of REST: the Python client for programs, as the others are used."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.client import Event, Message, Subscription, TrellisClient, Welcome

from .client import WAIT, Client, ReceivedMessage, trust


class RestClient(Client):
    """A program that publishes with POST and listens with server-sent events."""

    protocol = "rest"

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self._listening: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Create the clients; nothing is tried twice, so that no fault is hidden."""
        self.program = TrellisClient(self.url, self.key, tls=trust(), timeout=WAIT, retry_seconds=0)
        self.client = self.rest  # for requests that only tests make

    async def close(self) -> None:
        """Disconnect."""
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)
        await self.program.aclose()
        await self.client.aclose()

    async def subscribe(self, channel: str) -> None:
        """Subscribe to *channel*."""
        subscription = self.program.subscribe(channel)
        event = await asyncio.wait_for(anext(subscription), WAIT)
        assert isinstance(event, Welcome), event
        self._take(channel, event)
        self._listening[channel] = asyncio.create_task(self._hear(subscription))

    async def publish(self, channel: str, content: Any) -> None:
        """Publish *content*; it is on disk when this returns."""
        await self.program.publish(channel, content)

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Send *content* to only the peer with *number*."""
        await self.program.direct(channel, number, content)

    async def _hear(self, subscription: Subscription) -> None:
        async with subscription:
            async for event in subscription:
                self._take(subscription.channels[0], event)

    def _take(self, channel: str, event: Event) -> None:
        if isinstance(event, Message):
            self.received.put_nowait(ReceivedMessage(channel, event.content, event.direct, event.raw))

    async def _listen(self) -> None:
        """Do nothing, because each subscription has its own task."""
