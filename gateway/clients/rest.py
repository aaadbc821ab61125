"""A client of REST."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

from .client import WAIT, Client, ReceivedMessage, dumps
from .sse import EventReader


class RestClient(Client):
    """A program that publishes with POST and listens with server-sent events."""

    protocol = "rest"

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self._listening: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Create the HTTP client."""
        self.client = self.rest

    async def close(self) -> None:
        """Disconnect."""
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)
        await self.client.aclose()

    async def subscribe(self, channel: str) -> None:
        """Open an event stream of *channel*."""
        welcome = asyncio.Event()
        self._listening[channel] = asyncio.create_task(self._events(channel, welcome))
        await asyncio.wait_for(welcome.wait(), WAIT)

    async def say(self, channel: str, content: Any) -> None:
        """Publish *content*; it is on disk when this returns."""
        await self._post(f"/v1/channels/{quote(channel, safe='')}/messages", content)

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Send *content* to only the peer with *number*."""
        await self._post(f"/v1/channels/{quote(channel, safe='')}/peers/{number}/messages", content)

    async def _post(self, path: str, content: Any) -> None:
        headers = {"Content-Type": "application/json"}
        response = await self.client.post(path, content=dumps(content), headers=headers)
        response.raise_for_status()

    async def _events(self, channel: str, welcome: asyncio.Event) -> None:
        path = f"/v1/channels/{quote(channel, safe='')}/events"
        async with self.client.stream("GET", path, timeout=None) as response:
            response.raise_for_status()
            reader = EventReader()
            async for data in response.aiter_bytes():
                for event in reader.receive_data(data):
                    self._take(channel, event.name, json.loads(event.data))
                    if event.name == "welcome":
                        welcome.set()

    def _take(self, channel: str, event: str, data: Any) -> None:
        if event in ("message", "direct"):
            self.heard.put_nowait(ReceivedMessage(channel, data["content"], event == "direct", data))

    async def _listen(self) -> None:
        """Do nothing, because each subscription has its own task."""
