"""REST's Speaker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

from gateway.client import Event, Joined, Left, Refused, Welcome
from gateway.client.sse import EventReader
from gateway.demo_clients import WAIT, ReceivedMessage, RestClient, dumps

from .speaker import Presence, Speaker


class RestSpeaker(RestClient, Speaker):
    """A program: what it says is a request of its own, so its event stream hears it too."""

    echoes = True
    refused = "404"
    listing = True
    oversized: ClassVar[Any] = [""] * 250_000  # a string of JSON twice as long as the JSON
    too_long_for = frozenset({"topic_relay", "sprout", "streamr"})

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self.presence = asyncio.Queue()
        self._listed: list[int] = []

    async def listed(self) -> list[int] | None:
        """The `peers` in the event `welcome`."""
        return self._listed

    async def leave(self, channel: str) -> None:
        """End the stream, and wait until the gateway knows."""
        members = (await self.get(channel, ""))["members"]
        stream = self._listening.pop(channel)
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        async with asyncio.timeout(WAIT):
            while (await self.get(channel, "", default={"members": 0}))["members"] >= members:
                await asyncio.sleep(0.01)

    async def get(self, channel: str, what: str = "/messages", default: Any = None) -> Any:
        """What REST says of a channel; *default* where there is nothing."""
        response = await self.client.get(f"/v1/channels/{quote(channel, safe='')}{what}")
        if response.status_code == 404 and default is not None:
            return default
        return response.raise_for_status().json()

    async def said_before(self, channel: str) -> list[Any] | None:
        """All pages; an event stream that resumes from the beginning tells the same."""
        messages: list[Any] = []
        path: str | None = f"/v1/channels/{quote(channel, safe='')}/messages"
        while path is not None:
            page = (await self.client.get(path)).raise_for_status().json()
            messages, path = messages + page["messages"], page["next"]
        resumed = await self._resumed(channel, len(messages))
        assert resumed == messages, f"{resumed} {messages}"
        return [message["content"] for message in messages]

    async def _resumed(self, channel: str, count: int) -> list[Any]:
        path = f"/v1/channels/{quote(channel, safe='')}/events"
        found: list[Any] = []
        async with asyncio.timeout(WAIT), self.client.stream("GET", path, headers={"Last-Event-ID": "0"}) as response:
            reader, data = EventReader(), response.aiter_bytes()
            while len(found) < count:
                events = reader.receive_data(await anext(data))
                found += [json.loads(event.data) for event in events if event.name == "message"]
        return found

    async def say_twice(self, channel: str, content: Any) -> None:
        """One Idempotency-Key: the same answer; and with another body, a refusal."""
        path = f"/v1/channels/{quote(channel, safe='')}/messages"
        headers = {"Idempotency-Key": uuid4().hex}
        first, again, other = [
            await self.client.post(path, content=dumps(body), headers=headers) for body in (content, content, "another")
        ]
        assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422)
        assert again.json() == first.json()

    async def babble(self) -> None:
        """Each is refused with a problem."""
        for bad in (b"\xff", b"[" * 5_000, b"", b"NaN", b"1 2"):
            response = await self.client.post("/v1/channels/babble/messages", content=bad)
            assert (response.status_code, response.headers["content-type"]) == (400, "application/problem+json")

    async def refusal(self, request: Awaitable[None]) -> str:
        """The status."""
        try:
            await request
        except Refused as error:
            return str(error.status)
        return ""

    def answered(self, heard: ReceivedMessage) -> Any:
        """What the gateway says, and the content with it."""
        assert heard.content.get("inReplyTo") == heard.raw["inReplyTo"]
        return heard.raw["inReplyTo"]

    def _take(self, channel: str, event: Event) -> None:
        match event:
            case Welcome():
                self._listed = [peer.number for peer in event.peers]
            case Joined() | Left():
                self.presence.put_nowait(Presence(channel, event.peer.number, isinstance(event, Joined)))
            case _:
                super()._take(channel, event)
