"""The topic relay's Speaker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar

from gateway.demo_clients import RelayClient

from .speaker import GARBAGE, Presence, Speaker, answer_to

PINGED = {"ping": "the answer to this tells that everything before it was read"}


class RelaySpeaker(RelayClient, Speaker):
    """A peer of the topic relay: no history, no acceptance, no ids, silence to who is not there."""

    echoes = False
    copies = 2
    refused = ""
    departures = False
    listing = True
    oversized: ClassVar[Any] = {"content": "日" * 30_000}
    too_long_for = frozenset({"sprout"})

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self.presence = asyncio.Queue()
        self._listed: list[int] = []
        self._errors: list[str] = []

    async def subscribe(self, channel: str) -> None:
        """Hear the topic *channel*."""
        await self._send({"type": 2, "topic": channel})
        answer = await self._answer()
        assert "error" not in answer, answer
        self._listed = answer["peers"]

    async def listed(self) -> list[int] | None:
        """The `peers` in the echo."""
        return self._listed

    async def leave(self, channel: str) -> None:
        """Unsubscribe: silence; the Echo behind it tells that it was read."""
        await self._send({"type": 3, "topic": channel})
        await self.settle()

    async def said_before(self, _channel: str) -> list[Any] | None:
        """The protocol has no word for it."""
        return None

    async def say_twice(self, channel: str, content: Any) -> None:
        """A packet has no id: these are two messages."""
        for _ in range(2):
            await self.publish(channel, content)

    async def babble(self) -> None:
        """Each is answered with an error, and the connection lives."""
        for bad in GARBAGE:
            answer = await answer_to(bad, self)
            assert "error" in answer, answer

    async def refusal(self, request: Awaitable[None]) -> str:
        """The error in the echo, or silence."""
        await request
        await self.settle()
        return self._errors.pop() if self._errors else ""

    async def settle(self) -> None:
        """An Echo comes back when all before it was read."""
        await self._send({"type": 1, "topic": "", **PINGED})
        await self._answer()

    def _take(self, frame: Any) -> None:
        if frame["type"] == 7:
            self.presence.put_nowait(Presence(frame["topic"], frame["src"], True))
        elif frame["type"] == 1:
            self._answers.put_nowait(frame)
        elif "error" in frame and frame["type"] != 2:
            self._errors.append(frame["error"])
        else:
            super()._take(frame)
