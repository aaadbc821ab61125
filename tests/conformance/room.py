"""A channel with somebody who speaks and somebody who listens; how to know that nothing else was said."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

from gateway.demo_clients import WAIT, ReceivedMessage
from tests.conformance.speakers import SPEAKERS, Address, RestSpeaker, Speaker

END = "that is all that was said"  # what it says says nobody else: who has heard it has heard all that was before
_ends = count()


class ConformancePeers:
    """The *speaker*, the *listener* and a *witness*, who asks REST and says nothing that it is not asked to."""

    def __init__(
        self, gateway: Address, channel: str, stack: AsyncExitStack, speaker: Speaker, listener: Speaker, witness: Any
    ) -> None:
        self.channel = channel
        self.speaker = speaker
        self.listener = listener
        self.witness: RestSpeaker = witness
        self._gateway = gateway
        self._stack = stack

    async def enter(self, who: Speaker) -> Any:
        """Let somebody join the channel, with an inbox; what REST says of it."""
        before = await self.present()
        await who.subscribe(self.channel)
        after = await self.present()
        (number,) = after.keys() - before.keys()
        await who.take_mail(self.channel, number)
        return after[number]

    async def arrive(self) -> Any:
        """Let the speaker join, and say so where its protocol leaves that to peers; what REST says of it."""
        peer = await self.enter(self.speaker)
        if self.speaker.protocol != self.listener.protocol:
            return peer
        await self.speaker.tell_presence(self.channel, here=True)
        *_, peer = (await self.present()).values()  # who is known by what it says has another number now
        return peer

    async def depart(self) -> None:
        """Let the speaker leave, likewise."""
        if self.speaker.protocol == self.listener.protocol:
            await self.speaker.tell_presence(self.channel, here=False)
        await self.speaker.leave(self.channel)

    async def is_told(self, peer: Any) -> bool:
        """Whether the listener, which is told something of who is there, is told that *peer* came or that it left."""
        told = await asyncio.wait_for(self.listener.presence.get(), WAIT)
        assert told.channel == self.channel
        assert await self.listener.recognises(told.who, peer["number"], peer["name"])
        return told.here

    async def bystanders(self) -> list[Speaker]:
        """One more peer of each protocol, in the channel."""
        key = self._gateway.keys[2]
        found = [await self._stack.enter_async_context(make(self._gateway, "bob", key)) for make in SPEAKERS.values()]
        for each in found:
            await each.subscribe(self.channel)
        return found

    async def present(self) -> dict[int, Any]:
        """Who is in the channel, by number, as REST says it."""
        return {peer["number"]: peer for peer in (await self.witness.get(self.channel, "/peers"))["peers"]}

    async def end(self, *ears: Speaker) -> list[list[ReceivedMessage]]:
        """Wait until all that the two said is on disk; what each of *ears* heard until then, since the last end."""
        end = {END: next(_ends)}
        for who in (self.speaker, self.listener):
            await who.settle()
        await self.witness.publish(self.channel, end)
        return await asyncio.gather(*(self._until(end, ear) for ear in ears))

    async def heard(self) -> list[Any]:
        """What the listener heard by now: contents, said to all in this channel."""
        (heard,) = await self.end(self.listener)
        assert {(each.channel, each.direct) for each in heard} <= {(self.channel, False)}
        return [each.content for each in heard]

    async def said_before(self, who: Speaker) -> list[Any] | None:
        """What the channel's history is to *who*, without the ends."""
        found = await who.said_before(self.channel)
        return None if found is None else [content for content in found if not is_end(content)]

    async def kept(self) -> list[Any]:
        """The messages that REST's history has, without the ends."""
        messages = (await self.witness.get(self.channel))["messages"]
        return [message for message in messages if not is_end(message["content"])]

    async def undeliverable(self, protocol: str) -> float:
        """How many messages the gateway has counted that did not fit *protocol*."""
        text = (await self.witness.client.get("/metrics")).raise_for_status().text
        found = re.search(rf'^trellis_undeliverable_total{{protocol="{protocol}"}} (\S+)', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    @staticmethod
    async def _until(end: Any, ear: Speaker) -> list[ReceivedMessage]:
        found = []
        while (heard := await ear.next()).content != end:
            found.append(heard)
        return found


def is_end(content: Any) -> bool:
    """Whether *content* is what `Room.end` says."""
    return isinstance(content, dict) and content.keys() == {END}
