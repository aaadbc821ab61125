"""Streamr's Speaker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from typing import Any, ClassVar

from gateway.demo_clients import StreamrClient

from .speaker import GARBAGE, Speaker, answer_to

LATER = 600_000  # ms: the end of what a range asks for


class StreamrSpeaker(StreamrClient, Speaker):
    """A Streamr client: no word for presence, an inbox for direct messages, silence when all is well."""

    echoes = True
    refused = "NOT_FOUND"
    arrivals = departures = False
    oversized: ClassVar[Any] = {"content": "a" * 200_000}
    too_long_for = frozenset({"topic_relay", "sprout"})

    def __init__(self, http: str, key: str | None = None) -> None:
        super().__init__(http, key)
        self.presence = asyncio.Queue()
        self._mail: dict[str, str] = {}  # by channel, the stream that is the inbox there

    async def leave(self, channel: str) -> None:
        """UnsubscribeRequest: UnsubscribeResponse; from its inbox too, which counts as being there."""
        for stream in (channel, self._mail.pop(channel, None)):
            if stream is not None:
                await self._send([2, 10, f"unsubscribe {stream}", stream, 0])
                answer = await self._answer()
                assert answer[1] == 3, answer

    async def settle(self) -> None:
        """A request that is refused is answered when all before it was read."""
        await self._send([2, 10, "ping", "no such subscription", 0])
        assert (await self._answer())[2] == "ping"

    async def take_mail(self, channel: str, number: int) -> None:
        """Subscribe to the inbox as well."""
        self._mail[channel] = f"{channel}/@{number}"
        await self.subscribe(self._mail[channel])

    async def said_before(self, channel: str) -> list[Any] | None:
        """The last thousand; the same from the beginning, and in a range."""
        start, end = [0, 0], [time.time_ns() // 1_000_000 + LATER, 0]
        asked: list[tuple[int, list[Any]]] = [(11, [1000]), (12, [start, None]), (13, [start, end, None, None])]
        last, *others = [await self._resend(kind, channel, what) for kind, what in asked]
        assert others == [last, last]
        return last

    async def _resend(self, kind: int, stream: str, what: list[Any]) -> list[Any]:
        await self._send([2, kind, f"resend {kind}", stream, 0, *what, None])
        found: list[Any] = []
        while (frame := await self._answer())[1] not in (5, 6):  # ResendResponseResent, ResendResponseNoResend
            assert frame[1] in (1, 4), frame
            found += [json.loads(frame[3][7])] if frame[1] == 1 else []
        return found

    async def say_twice(self, channel: str, content: Any) -> None:
        """The same message in two PublishRequests."""
        message = self._message(channel, content)
        for _ in range(2):
            await self._publish(message)

    async def babble(self) -> None:
        """Each is answered with an error, and the connection lives."""
        for bad in GARBAGE:
            answer = await answer_to(bad, self)
            assert answer[1] == 7, answer

    async def refusal(self, request: Awaitable[None]) -> str:
        """The code of the ErrorResponse."""
        await request
        await self.settle()
        return str(self.errors.pop()[4]) if self.errors else ""
