"""A client of Sprout; a `NodeFactory` that is passed in makes and reads Arbor nodes."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from gateway.client.jsontext import dumps

from .client import WAIT, Client, ReceivedMessage, trust

Answer = TypeVar("Answer")


class ArborNode(NamedTuple):
    """An Arbor node: its id and its encoding."""

    id: str
    raw: bytes


class ReplyContent(NamedTuple):
    """The content of a Reply; *keys* are its TWIG keys."""

    community: str
    text: str
    keys: frozenset[str]


class NodeFactory(Protocol):
    """Creates and reads Arbor nodes for one author."""

    def identity(self) -> ArborNode:
        """Return the author's identity node."""

    def reply(self, community: str, text: str, twig: dict[str, str]) -> ArborNode:
        """Create a signed Reply whose parent is the community."""

    def read(self, raw: bytes) -> ReplyContent | None:
        """Read the content of a Reply; return None for other nodes."""


class SproutClient(Client):
    """An Arbor client over TCP."""

    protocol = "sprout"
    DIRECT: ClassVar[frozenset[str]] = frozenset({"to/1", "private/1"})

    def __init__(self, http: str, sprout: str, factory: NodeFactory, key: str | None = None) -> None:
        """Create a client of *sprout*: `HOST:PORT`, or `tls://HOST:PORT`; *key* is only for REST."""
        super().__init__(http, key)
        self._address = sprout
        self._factory = factory
        self._next_id = 0
        self._communities: dict[str, str] = {}
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._responses: dict[int, asyncio.Future[list[ArborNode]]] = {}

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await self.dial()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        host, _, port = self._address.rpartition("/")[2].rpartition(":")
        tls = trust() if self._address.startswith("tls://") else None
        return await asyncio.open_connection(host, int(port), limit=1 << 20, ssl=tls)

    async def close(self) -> None:
        """Disconnect."""
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    async def subscribe(self, channel: str) -> None:
        """Subscribe to the community of *channel*."""
        await self._request("subscribe {} " + await self.community(channel))

    async def publish(self, channel: str, content: Any) -> None:
        """Announce a Reply; it is on disk when this returns."""
        await self._announce(await self.community(channel), content, {})

    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Announce a Reply for only the peer with *number*."""
        await self._announce(await self.community(channel), content, {"to/1": str(number)})

    async def community(self, channel: str) -> str:
        """Return the id of *channel*'s community; create the channel over REST if necessary."""
        if channel in self._communities:
            return self._communities[channel]
        path = f"/v1/channels/{quote(channel, safe='')}"
        async with self.rest as client:
            (await client.put(path)).raise_for_status()
            while channel not in self._communities:
                if (community := (await client.get(path)).json().get("community")) is not None:
                    self._communities[channel] = community
                await asyncio.sleep(0.02)
        return self._communities[channel]

    async def _announce(self, community: str, content: Any, twig: dict[str, str]) -> None:
        plain = isinstance(content, dict) and content.keys() == {"content"} and isinstance(content["content"], str)
        text = content["content"] if plain else dumps(content)
        await self._tell(self._factory.reply(community, text, twig if plain else {**twig, "json/1": "true"}))

    async def _tell(self, reply: ArborNode) -> None:
        await self._request("announce {} 2\n" + _line(self._factory.identity()) + "\n" + _line(reply))

    async def _request(self, text: str) -> None:
        if code := await self._answer(text, self._statuses):
            raise ValueError(f"status {code} to {text.split()[0]}")

    async def _ask(self, text: str) -> list[ArborNode]:
        """Send a request that is answered with nodes, and return them."""
        return await self._answer(text, self._responses)

    async def _answer(self, text: str, awaited: dict[int, asyncio.Future[Answer]]) -> Answer:
        """Send *text* with a request id in it, and wait for the answer with that id, which resolves it in *awaited*."""
        number, self._next_id = self._next_id, self._next_id + 1
        answer = awaited[number] = asyncio.get_running_loop().create_future()
        self._writer.write(text.format(number).encode() + b"\n")
        return await asyncio.wait_for(answer, WAIT)

    async def _listen(self) -> None:
        while line := await self._reader.readline():
            verb, number, value, *_ = [*line.split(), b"", b""]
            if verb == b"status":
                self._statuses.pop(int(number)).set_result(int(value))
            elif verb == b"response":
                self._responses.pop(int(number)).set_result([await self._node() for _ in range(int(value))])
            elif verb == b"announce":
                for _ in range(int(value)):
                    self._take(await self._node())
                self._writer.write(b"status %b 0\n" % number)
            elif verb in (b"query", b"ancestry"):
                for _ in range(int(value) if verb == b"query" else 0):
                    await self._reader.readline()
                self._writer.write(b"response %b 0\n" % number)

    async def _node(self) -> ArborNode:
        id, text = (await self._reader.readline()).decode().split()
        return ArborNode(id, urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    def _take(self, node: ArborNode) -> None:
        if (message := self._message_of(node)) is not None:
            self.received.put_nowait(message)

    def _message_of(self, node: ArborNode) -> ReceivedMessage | None:
        """Return *node* as a message, or None if it is not one on a channel that this client knows."""
        reply = self._factory.read(node.raw)
        channels = {community: channel for channel, community in self._communities.items()}
        if reply is None or reply.community not in channels or "activity/1" in reply.keys:
            return None
        content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
        return ReceivedMessage(channels[reply.community], content, bool(self.DIRECT & reply.keys), node)


def _line(node: ArborNode) -> str:
    return f"{node.id} {urlsafe_b64encode(node.raw).rstrip(b'=').decode()}"
