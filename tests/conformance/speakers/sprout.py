"""Arbor's Speaker."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any, ClassVar

from gateway.demo_clients import WAIT, ArborNode, ReceivedMessage, SproutClient, dumps
from tests.conformance.forge import SequoiaForge

from .speaker import Presence, Speaker


class SproutSpeaker(SproutClient, Speaker):
    """An Arbor client: everything is a signed node, and a status answers it."""

    echoes = False
    refused = "status 4 to announce"
    telling = True
    oversized: ClassVar[Any] = {"content": "a" * 65_500}
    too_long_for = frozenset({"topic_relay"})

    def __init__(self, http: str, sprout: str, forge: SequoiaForge, key: str | None = None) -> None:
        super().__init__(http, sprout, forge, key)
        self.presence = asyncio.Queue()
        self._author = forge
        self._told: set[str] = set()  # the nodes that said who is there

    async def subscribe(self, channel: str) -> None:
        """Listen, and ask to be told who is there: by a word of one's own, of a kind that says nothing."""
        await super().subscribe(channel)
        twig = {"activity/1": "?", "invisible/1": "true"}
        await self._tell(self._author.reply(await self.community(channel), "", twig))

    async def leave(self, channel: str) -> None:
        """Unsubscribe: status 0."""
        await self._request("unsubscribe {} " + await self.community(channel))

    async def said_before(self, channel: str) -> list[Any] | None:
        """`leaves_of` the community; `query` has the same nodes, and `ancestry` leads from each to the community."""
        community = await self.community(channel)
        found = await self._ask(f"leaves_of {{}} {community} 256")
        assert community in [node.id for node in found], "it is among them"
        nodes = [node for node in found if node.id != community and not self._is_conversation(node)]
        asked = "\n".join(node.id for node in nodes)
        assert nodes == (await self._ask(f"query {{}} {len(nodes)}\n{asked}") if nodes else [])
        above = await asyncio.gather(*(self._ask(f"ancestry {{}} {node.id} 9") for node in nodes))
        assert all(found[0].id == community for found in above)
        return [heard.content for node in nodes if (heard := self._message_of(node)) is not None]

    def _is_conversation(self, node: ArborNode) -> bool:
        """Whether it is what the messages of others stand below, one for each day: nobody said it."""
        reply = self._author.read(node.raw)
        return reply is not None and "channel/1" in reply.keys

    async def say_twice(self, channel: str, content: Any) -> None:
        """The same node in two announces."""
        node = self._author.reply(await self.community(channel), dumps(content), {"json/1": "true"})
        for _ in range(2):
            await self._tell(node)

    async def answer(self, question: ReceivedMessage, id: str, content: dict[str, str]) -> None:
        """A Reply below the node that was heard."""
        del id  # in Arbor the question is its node
        community = await self.community(question.channel)
        await self._tell(self._author.reply(community, content["content"], {}, parent=question.raw))

    async def tell_presence(self, channel: str, *, here: bool) -> None:
        """Announce an invisible Reply: Arbor's convention among its own."""
        end = datetime.fromtimestamp(time.time() + 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        twig = {"activity/1": "0" if here else "1", "expiration/1": end, "invisible/1": "true"}
        await self._tell(self._author.reply(await self.community(channel), "", twig))

    async def recognises(self, who: Any, number: int, name: str | None) -> bool:
        """By the name of the identity, which the gateway holds."""
        (node,) = await self._ask(f"query {{}} 1\n{who}")
        return self._author.name(node.raw) == name or f"peer {number} (" in self._author.name(node.raw)

    async def babble(self) -> None:
        """What is malformed is refused; where no line can be found any more, the connection ends."""
        for bad in (b"\xff" * 1000, b"list 1 1 -1\n" * 100, b"announce 1 99999999999\n", b"x" * 300_000):
            reader, writer = await self.dial()
            writer.write(bad + b"\n")
            assert (await asyncio.wait_for(reader.readline(), WAIT)).endswith(b" 1\n"), bad[:20]
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    def answered(self, heard: ReceivedMessage) -> Any:
        """The node's parent."""
        return self._author.parent(heard.raw.raw)

    def _take(self, node: ArborNode) -> None:
        activity = self._author.activity(node.raw)
        if activity is None:
            super()._take(node)
            return
        if node.id in self._told:  # who has just come may be told what it was told already; Arbor's clients drop that
            return
        self._told.add(node.id)
        community, author, value = activity
        channel = next(name for name, id in self._communities.items() if id == community)
        self.presence.put_nowait(Presence(channel, author, value == "0"))
