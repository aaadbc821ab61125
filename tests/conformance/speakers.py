"""The Speakers: a peer of each protocol, and what it can do and see by its protocol's own means.

A Speaker is a client of `gateway.clients` and what the conformance suite asks beyond that. A new protocol adds one, and
one line to SPEAKERS; that multiplies the pairs. What differs between the protocols on purpose (mapping, verb by verb)
is what stands at the top of each class.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import httpx

from gateway.clients import WAIT, Client, Heard, Node, RelayClient, RestClient, SproutClient, StreamrClient, dumps
from gateway.sse import EventReader
from tests.conformance.forge import SequoiaForge

PINGED = {"ping": "the answer to this tells that everything before it was read"}
GARBAGE = ("[" * 5_000, b"\x3d\xd8", "null", "x" * 70_000)  # no packet and no frame
LATER = 600_000  # ms: the end of what a range asks for


@dataclass(frozen=True)
class Address:
    """Where a gateway is: its HTTP and its Sprout address, and the keys of three peers where it wants some."""

    http: str
    sprout: str
    keys: tuple[str | None, ...] = (None, None, None)


class Presence(NamedTuple):
    """Somebody came (or left): a number, or in Arbor the id of an identity."""

    channel: str
    who: Any
    here: bool


class Speaker(Client):
    """What the suite asks of a peer beyond `Client`: subscribe, say, direct and `heard` are there."""

    echoes: ClassVar[bool]  # whether a publisher that listens hears itself
    copies: ClassVar[int] = 1  # how often a message is heard that was said twice under one native id
    refused: ClassVar[str]  # what is told of a direct message that reaches nobody
    arrivals: ClassVar[bool] = True  # whether it is told who comes
    departures: ClassVar[bool] = True  # and who leaves
    listing: ClassVar[bool] = False  # whether the answer to `subscribe` tells who is there
    telling: ClassVar[bool] = False  # or is told afterwards
    oversized: ClassVar[Any]  # what it may say and others have no room for
    too_long_for: ClassVar[frozenset[str]]  # those others

    presence: asyncio.Queue[Presence]

    @abstractmethod
    async def direct(self, channel: str, number: int, content: Any) -> None:
        """Say *content* to the peer with *number* alone."""

    @abstractmethod
    async def leave(self, channel: str) -> None:
        """Hear *channel* no more."""

    @abstractmethod
    async def said_before(self, channel: str) -> list[Any] | None:
        """What was said on *channel*, as the protocol's own history has it; None where it has none."""

    @abstractmethod
    async def say_twice(self, channel: str, content: Any) -> None:
        """Say *content*, and the very same message again."""

    @abstractmethod
    async def answer(self, question: Heard, id: str, content: dict[str, str]) -> None:
        """Say *content* in answer to the *question* that was heard, whose canonical id is *id*."""

    @abstractmethod
    async def babble(self) -> None:
        """Send what no program of this protocol sends; the gateway answers as it should."""

    async def settle(self) -> None:
        """Wait until all that was said is taken; where a protocol accepts what is said it was waited for then."""

    async def take_mail(self, channel: str, number: int) -> None:
        """Do what it takes to hear direct messages in *channel*, where this peer has that *number*."""

    async def listed(self) -> list[int] | None:
        """The numbers of those who were there, as the last `subscribe` told; None where it tells nothing."""
        return None

    async def tell_presence(self, channel: str, *, here: bool) -> None:
        """Say to others of the same protocol that this peer is *here* or not; in most, the gateway does that."""

    async def recognises(self, who: Any, number: int, name: str | None) -> bool:  # noqa: ARG002  # most have no names
        """Whether *who*, of whom this peer was told, is the one with that *number* and *name*."""
        return bool(who == number)

    async def refusal(self, request: Awaitable[None]) -> str:
        """What this peer is told when it makes a *request* that is refused; empty if nothing."""
        try:
            await request
        except ValueError as error:
            return str(error)
        return ""

    def answered(self, heard: Heard) -> Any:
        """The id of what *heard* is an answer to, as this protocol shows it."""
        return heard.content.get("inReplyTo")


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
            await self.say(channel, content)

    async def answer(self, question: Heard, id: str, content: dict[str, str]) -> None:
        """`inReplyTo` in the content."""
        await self.say(question.channel, {**content, "inReplyTo": id})

    async def babble(self) -> None:
        """Each is answered with an error, and the connection lives."""
        for bad in GARBAGE:
            async with await self.dial() as socket:
                await socket.send(bad)
                answer = json.loads(await asyncio.wait_for(socket.recv(), WAIT))
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
        return [heard.content for node in nodes if (heard := self._heard_as(node)) is not None]

    def _is_conversation(self, node: Node) -> bool:
        """Whether it is what the messages of others stand below, one for each day: nobody said it."""
        reply = self._author.read(node.raw)
        return reply is not None and "channel/1" in reply.keys

    async def say_twice(self, channel: str, content: Any) -> None:
        """The same node in two announces."""
        node = self._author.reply(await self.community(channel), dumps(content), {"json/1": "true"})
        for _ in range(2):
            await self._tell(node)

    async def answer(self, question: Heard, id: str, content: dict[str, str]) -> None:
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

    def answered(self, heard: Heard) -> Any:
        """The node's parent."""
        return self._author.parent(heard.raw.raw)

    def _take(self, node: Node) -> None:
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

    async def answer(self, question: Heard, id: str, content: dict[str, str]) -> None:
        """`inReplyTo` in the content."""
        await self.say(question.channel, {**content, "inReplyTo": id})

    async def babble(self) -> None:
        """Each is answered with an error, and the connection lives."""
        for bad in GARBAGE:
            async with await self.dial() as socket:
                await socket.send(bad)
                answer = json.loads(await asyncio.wait_for(socket.recv(), WAIT))
                assert answer[1] == 7, answer

    async def refusal(self, request: Awaitable[None]) -> str:
        """The code of the ErrorResponse."""
        await request
        await self.settle()
        return str(self.errors.pop()[4]) if self.errors else ""


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

    async def answer(self, question: Heard, id: str, content: dict[str, str]) -> None:
        """`inReplyTo` in the content."""
        await self.say(question.channel, {**content, "inReplyTo": id})

    async def babble(self) -> None:
        """Each is refused with a problem."""
        for bad in (b"\xff", b"[" * 5_000, b"", b"NaN", b"1 2"):
            response = await self.client.post("/v1/channels/babble/messages", content=bad)
            assert (response.status_code, response.headers["content-type"]) == (400, "application/problem+json")

    async def refusal(self, request: Awaitable[None]) -> str:
        """The status."""
        try:
            await request
        except httpx.HTTPStatusError as error:
            response = error.response
        else:
            return ""
        assert response.headers["content-type"] == "application/problem+json"
        return str(response.status_code)

    def answered(self, heard: Heard) -> Any:
        """What the gateway says, and the content with it."""
        assert heard.content.get("inReplyTo") == heard.raw["inReplyTo"]
        return heard.raw["inReplyTo"]

    def _take(self, channel: str, event: str, data: Any) -> None:
        if event == "welcome":
            self._listed = [peer["number"] for peer in data["peers"]]
        elif event in ("joined", "left"):
            self.presence.put_nowait(Presence(channel, data["number"], event == "joined"))
        else:
            super()._take(channel, event, data)


Make = Callable[[Address, str, str | None], Speaker]

# By protocol: how a Speaker is made of the address, who it is (of those whose keys the forge has), and an API key.
SPEAKERS: dict[str, Make] = {
    "topic_relay": lambda at, _name, key: RelaySpeaker(at.http, key),
    "sprout": lambda at, name, key: SproutSpeaker(at.http, at.sprout, SequoiaForge(name), key),
    "streamr": lambda at, _name, key: StreamrSpeaker(at.http, key),
    "rest": lambda at, _name, key: RestSpeaker(at.http, key),
}
