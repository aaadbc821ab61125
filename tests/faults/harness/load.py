"""Everybody who talks and listens during one life of the gateway; what comes of it goes into the ledger.

Whoever is cut off comes back, until the life is over. What is said is chosen by the seed; how much of it, by time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import quote

from gateway.client.sse import EventReader
from gateway.clients import ArborNode
from tests.conformance.forge import SequoiaForge

from .ledger import Ledger, Said, token_of
from .nursery import Running
from .wires import Closed, Http, Socket, Sprout, Wallet, quietly, unsigned

CHANNELS = ("lobby", "weather/berlin")
PAUSE = 0.03  # seconds between two things that somebody says, about
PATIENT = 1.0  # the same for who has said enough: what is said does not grow with the time that things take
ENOUGH = 6  # things that each says before something happens
BACK = 0.03  # seconds until somebody who was cut off comes back
STREAMR = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"

Talker = Callable[[], Coroutine[Any, Any, None]]


@cache
def author() -> SequoiaForge:
    """Who writes in Arbor; to read a key takes long."""
    return SequoiaForge()


class Crowd:
    """All peers of one life, at the gateway that *where* gives; *name* tells its tokens from those of other lives.

    Where what the forest hangs on was damaged by us (not *sure*), a node may wait for that, for ever: status 0 promises
    nothing then, not even an order.
    """

    def __init__(
        self, where: Callable[[], Running], ledger: Ledger, chance: random.Random, name: str, *, sure: bool
    ) -> None:
        self._where = where
        self.ledger = ledger
        self._chance = chance
        self._name = name
        self._sure = sure
        self._count = 0
        self._connections = count()
        self._spoken: Counter[str] = Counter()
        self._stirred = asyncio.Event()
        self._parent: tuple[str, ArborNode] | None = None  # what was accepted last in Arbor
        self.communities: dict[str, str] = {}
        self.repeated = deque[Any](maxlen=0)  # what a Streamr client that comes back publishes again
        self.over = False

    @property
    def running(self) -> Running:
        """The gateway to connect to."""
        return self._where()

    def listeners(self) -> list[Talker]:
        """Who listens, as long as the life lasts."""
        own = [self.relay_listener, self.streamr_listener, self.sprout_listener]
        return [*own, *(self._of(self.events, channel) for channel in CHANNELS)]

    def talkers(self) -> list[Talker]:
        """Who talks, until it is over."""
        return [self.rest, self.rest, self.lines, self.relay, self.streamr, self.sprout]

    @asynccontextmanager
    async def talking(self) -> AsyncIterator[None]:
        """Everybody talks and listens; afterwards listeners get a moment to hear what is left."""
        await self.find_communities()
        tasks = [asyncio.create_task(self._again(each, lambda: False)) for each in self.listeners()]
        tasks += [asyncio.create_task(self._again(each, lambda: self.over)) for each in self.talkers()]
        try:
            yield
        finally:
            self.over = True
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def find_communities(self) -> None:
        """Which communities the channels are; they are made in the first life."""
        async with Http(self.running.http) as http:
            for channel in CHANNELS:
                path = f"/v1/channels/{quote(channel, safe='')}"
                while channel not in self.communities:
                    with suppress(OSError):
                        await http.ask("PUT", path)
                        _, body = await http.ask("GET", path)
                        if community := json.loads(body).get("community"):
                            self.communities[channel] = community
                    await asyncio.sleep(0.01)

    # Who talks

    async def rest(self) -> None:
        """One message in each request; what was never answered is sent again with its Idempotency-Key."""
        unanswered = [said for said in self.ledger.said.values() if said.key and said.text and not said.accepted]
        known = [said for said in self.ledger.said.values() if said.key and said.text and said.accepted]
        connection = self._connection()
        async with Http(self.running.http) as http:
            while not self.over:
                if unanswered:
                    said = unanswered.pop()
                elif known and self._chance.random() < 0.1:
                    said = self._chance.choice(known)
                else:
                    said = self._said("rest", keyed=self._chance.random() < 0.5)
                await self._post(http, connection, said)
                await self._pause(connection)

    async def _post(self, http: Http, connection: str, said: Said) -> None:
        self.ledger.say(connection, said)
        headers = {} if said.key is None else {"Idempotency_Key": said.key}
        assert said.text is not None
        status, body = await http.ask("POST", path_of(said.channel), said.text.encode(), **headers)
        if status == 201:
            receipt = json.loads(body)
            self.ledger.accept(said, receipt["sequence"], receipt["id"])
        elif status not in (429, 503, 507):
            self.ledger.complain(f"a message was answered with {status} {body!r}")

    async def lines(self) -> None:
        """Many messages in one request, answered line by line."""
        channel, connection = self._chance.choice(CHANNELS), self._connection()
        async with Http(self.running.http) as http:
            headers = {"transfer-encoding": "chunked", "content-type": "application/x-ndjson"}
            await http.begin("POST", path_of(channel), headers)
            waiting: list[Said] = []
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._results(http, waiting))
                while not self.over:
                    batch = [self._said("lines", channel) for _ in range(self._chance.randint(1, 6))]
                    waiting.extend([self.ledger.say(connection, said) for said in batch])
                    body = "".join(f"{said.text}\n" for said in batch).encode()
                    http.send(b"%x\r\n%b\r\n" % (len(body), body))
                    await self._pause(connection)

    async def _results(self, http: Http, waiting: list[Said]) -> None:
        await http.head()
        rest = b""
        async for piece in http.pieces():
            *results, rest = (rest + piece).split(b"\n")
            for result in map(json.loads, results):
                said = waiting.pop(0)
                if "sequence" in result:
                    self.ledger.accept(said, result["sequence"], result["id"])
                elif result["status"] not in (429, 503, 507):
                    self.ledger.complain(f"a line was answered with {result}")
        raise Closed("the answer has ended")

    async def relay(self) -> None:
        """Broadcasts, alone and in bursts."""
        connection = self._connection()
        async with Socket(self.running.http, "/relay") as socket:
            while not self.over:
                for _ in range(self._chance.choice((1, 1, 8))):
                    said = self._said("relay")
                    said.text = None  # the gateway takes it out of the packet
                    self.ledger.say(connection, said)
                    await socket.send(json.dumps({"type": 6, "topic": said.channel} | said.content))
                await self._pause(connection)

    async def streamr(self) -> None:
        """Messages that are signed, unsigned or encrypted."""
        wallet, moment, connection = Wallet(self._chance.randint(1, 9)), 0, self._connection()
        async with Socket(self.running.http, STREAMR) as socket:
            for message in self.repeated:
                self.ledger.again.add(token_of(streamr_content(message)))
                await socket.send(json.dumps([2, 8, "again", message, None]))
            while not self.over:
                for kind in self._chance.choices(("signed", "unsigned", "encrypted"), k=self._chance.choice((1, 4))):
                    said, moment = self._said("streamr"), max(moment + 1, time.time_ns() // 1_000_000)
                    assert said.text is not None
                    place, chain = (moment, 0), f"{kind} {self._name}"
                    if kind == "unsigned":
                        message = unsigned(said.channel, place, chain, said.text)
                    elif kind == "signed":
                        message = wallet.message(said.channel, place, chain, said.text)
                    else:
                        said.content = {"encrypted": {"groupKeyId": said.token, "content": "ab" * 40}}
                        said.text = None
                        message = wallet.message(said.channel, place, chain, "ab" * 40, said.token)
                    self.ledger.say(f"{connection} {kind}", said)
                    self.repeated.append(message)
                    await socket.send(json.dumps([2, 8, said.token, message, None]))
                await self._pause(connection)

    async def sprout(self) -> None:
        """Signed nodes, a few in each announce; some below others that were accepted; some told again."""
        async with Sprout(self.running.sprout) as sprout:
            sent: dict[int, list[Said]] = {}
            connection = self._connection()
            held = [said for said in self.ledger.accepted if said.node]  # in an earlier life

            def answered(number: int, code: int) -> None:
                told = sent.pop(number, []) if self._sure else []
                if told and code == 4 and self.ledger.keeping:
                    self.ledger.orphan(told)
                elif told and code and not self.may_refuse(code):
                    self.ledger.complain(f"an announce was answered with status {code}")
                for said in told if code == 0 else ():
                    self.ledger.accept(said)
                    self._parent = said.channel, ArborNode(said.node or "", said.raw)

            sprout.on_status = answered
            reading = asyncio.create_task(self._read(sprout))
            try:
                identity = author().identity()
                sprout.held[identity.id] = identity
                sprout.announce([identity])
                while not self.over:
                    some = [self._node() for _ in range(self._chance.randint(1, 3))]
                    told = [self.ledger.say(connection, said) for said in some]
                    if held and self._chance.random() < 0.1:
                        told.append(self.ledger.say(connection, self._chance.choice(held)))
                    if not self._sure:
                        self.ledger.again.update(said.token for said in told)
                    number = sprout.announce([ArborNode(said.node or "", said.raw) for said in told])
                    sent[number] = told
                    await self._pause(connection)
                    if reading.done():
                        reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def may_refuse(self, code: int) -> bool:
        """Whether an announce may be answered with the status *code*."""
        return code == 1 and "the log cannot be written" in self.running.said

    async def _read(self, sprout: Sprout) -> None:
        while True:
            await sprout.read()

    def _node(self) -> Said:
        said = self._said("sprout")
        parent = None
        if self._parent is not None and self._chance.random() < 0.2:
            said.channel, parent = self._parent
            said.parent = parent.id
        node = author().reply(self.communities[said.channel], said.content["content"], {}, parent)
        said.node, said.raw, said.text = node.id, node.raw, None
        return said

    # Who listens

    async def events(self, channel: str) -> None:
        """An event stream that goes on where it was cut off, from the very first message on."""
        listener = f"events of {channel}"
        async with Http(self.running.http) as http:
            last = str(self.ledger.latest.get(listener, 0))
            await http.begin("GET", f"/v1/channels/{quote(channel, safe='')}/events", {"last-event-id": last})
            status, _ = await http.head()
            if status != 200:
                raise Closed(f"status {status}")
            reader = EventReader()
            async for piece in http.pieces():
                for event in reader.receive_data(piece):
                    if event.name == "message":
                        told = json.loads(event.data)
                        self.ledger.show(listener, channel, told["sequence"], told["content"])
                        self._note(listener, told["content"])
                    elif event.name == "gap":
                        gap = json.loads(event.data)
                        self.ledger.skip(channel, gap["after"], gap["before"])

    async def relay_listener(self) -> None:
        """A peer of the topic relay that listens to everything."""
        async with Socket(self.running.http, "/relay") as socket:
            for channel in CHANNELS:
                await socket.send(json.dumps({"type": 2, "topic": channel}))
            while True:
                frame = await socket.receive()
                if frame["type"] == 6:
                    own = {name: value for name, value in frame.items() if name not in ("type", "topic", "src")}
                    self._hear(frame["topic"], own)

    async def streamr_listener(self) -> None:
        """A Streamr client that is subscribed to everything."""
        async with Socket(self.running.http, STREAMR) as socket:
            for channel in CHANNELS:
                await socket.send(json.dumps([2, 9, channel, channel, 0, None]))
            while True:
                frame = await socket.receive()
                if frame[1] == 0:
                    self._hear(frame[3][1][0], streamr_content(frame[3]))

    async def sprout_listener(self) -> None:
        """An Arbor client that is subscribed to everything."""
        async with Sprout(self.running.sprout) as sprout:
            names = {community: channel for channel, community in self.communities.items()}

            def node(found: ArborNode) -> None:
                reply = author().read(found.raw)
                if reply is None or reply.community not in names or reply.keys & {"activity/1", "channel/1"}:
                    return
                content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
                self._hear(names[reply.community], content)

            sprout.on_node = node
            for community in names:
                sprout.ask("subscribe {} " + community)
            await self._read(sprout)

    # What all of them do

    def _note(self, listener: str, content: Any) -> None:
        """Note what a *listener* heard, where that is compared."""

    def _hear(self, channel: str, content: Any) -> None:
        self.ledger.hear(channel, content)

    def _said(self, who: str, channel: str | None = None, *, keyed: bool = False) -> Said:
        self._count += 1
        token = f"{who}{self._name}.{self._count}"
        content = {"content": f"{token} {'x' * self._chance.choice((0, 20, 300))}é\U0001f33f"}
        text = json.dumps(
            content, ensure_ascii=self._chance.random() < 0.5, indent=self._chance.choice((None, None, 1))
        )
        text = text.replace("\n", " ")
        channel = channel or self._chance.choice(CHANNELS)
        return Said(token, channel, who, content, text, key=f"key {token}" if keyed else None)

    def _connection(self) -> str:
        return f"{self._name}/{next(self._connections)}"

    def stir(self) -> None:
        """Something is about to happen: whoever had said enough goes on."""
        self._spoken.clear()
        self._stirred.set()
        self._stirred = asyncio.Event()

    async def _pause(self, connection: str) -> None:
        self._spoken[connection] += 1
        if self._spoken[connection] < ENOUGH:
            await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE))
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), self._chance.uniform(0, 2 * PATIENT))

    @staticmethod
    def _of(listener: Callable[[str], Coroutine[Any, Any, None]], channel: str) -> Talker:
        return lambda: listener(channel)

    async def _again(self, talker: Talker, over: Callable[[], bool]) -> None:
        while not over():
            await quietly(talker())
            await asyncio.sleep(BACK)


def path_of(channel: str) -> str:
    """Where a channel's messages are."""
    return f"/v1/channels/{quote(channel, safe='')}/messages"


def streamr_content(message: list[Any]) -> Any:
    """What a stream message says, as others see it."""
    if message[5] == 2:
        return {"encrypted": {"groupKeyId": message[6], "content": message[7]}}
    return json.loads(message[7])
