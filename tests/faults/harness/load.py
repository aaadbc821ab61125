"""Clients that publish and listen during one life of the gateway; the ledger records what they send and receive.

A client that is disconnected reconnects, until the life is over. The seed chooses the messages; time, how many.
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
from gateway.demo_clients import ArborNode
from tests.conformance.forge import SequoiaForge

from .connections import ConnectionClosed, HttpConnection, SigningKey, Socket, Sprout, unsigned, until_disconnected
from .fork_server import GatewayProcess
from .ledger import Ledger, SentMessage, token_of

CHANNELS = ("lobby", "weather/berlin")
PAUSE = 0.03  # mean seconds between two messages of a client
SLOW_PAUSE = 1.0  # the same after `FAST_MESSAGES`: the number of messages does not grow with the time that faults take
FAST_MESSAGES = 6  # messages that each client sends quickly before the next fault
RECONNECT_SECONDS = 0.03  # seconds until a client reconnects
STREAMR = "/api/v1/ws?controlLayerVersion=2&messageLayerVersion=32"

ClientTask = Callable[[], Coroutine[Any, Any, None]]


@cache
def author() -> SequoiaForge:
    """Who writes in Arbor; to read a key takes long."""
    return SequoiaForge()


class LoadClients:
    """All clients of one life, at the gateway that *where* returns; *name* distinguishes its tokens from other lives'.

    Where a record that other nodes refer to was damaged (not *sure*), a node may wait for it for ever: status 0
    promises nothing then, not even an order.
    """

    def __init__(
        self, where: Callable[[], GatewayProcess], ledger: Ledger, chance: random.Random, name: str, *, sure: bool
    ) -> None:
        self._where = where
        self.ledger = ledger
        self._chance = chance
        self._name = name
        self._sure = sure
        self._count = 0
        self._connections = count()
        self._sent_counts: Counter[str] = Counter()
        self._resumed = asyncio.Event()
        self._parent: tuple[str, ArborNode] | None = None  # what was accepted last in Arbor
        self.communities: dict[str, str] = {}
        self.repeated = deque[Any](maxlen=0)  # what a Streamr client publishes again when it reconnects
        self.over = False

    @property
    def running(self) -> GatewayProcess:
        """The gateway to connect to."""
        return self._where()

    def listeners(self) -> list[ClientTask]:
        """Clients that listen, as long as the life lasts."""
        own = [self.relay_listener, self.streamr_listener, self.sprout_listener]
        return [*own, *(self._of(self.events, channel) for channel in CHANNELS)]

    def publishers(self) -> list[ClientTask]:
        """Clients that publish, until the traffic ends."""
        return [self.rest, self.rest, self.lines, self.relay, self.streamr, self.sprout]

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """All clients publish and listen; afterwards listeners get a moment to receive what is left."""
        await self.find_communities()
        tasks = [asyncio.create_task(self._reconnect(each, lambda: False)) for each in self.listeners()]
        tasks += [asyncio.create_task(self._reconnect(each, lambda: self.over)) for each in self.publishers()]
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
        async with HttpConnection(self.running.http) as http:
            for channel in CHANNELS:
                path = f"/v1/channels/{quote(channel, safe='')}"
                while channel not in self.communities:
                    with suppress(OSError):
                        await http.ask("PUT", path)
                        _, body = await http.ask("GET", path)
                        if community := json.loads(body).get("community"):
                            self.communities[channel] = community
                    await asyncio.sleep(0.01)

    # Publishers

    async def rest(self) -> None:
        """One message in each request; what was never answered is sent again with its Idempotency-Key."""
        unanswered = [sent for sent in self.ledger.messages.values() if sent.key and sent.text and not sent.accepted]
        known = [sent for sent in self.ledger.messages.values() if sent.key and sent.text and sent.accepted]
        connection = self._connection()
        async with HttpConnection(self.running.http) as http:
            while not self.over:
                if unanswered:
                    sent = unanswered.pop()
                elif known and self._chance.random() < 0.1:
                    sent = self._chance.choice(known)
                else:
                    sent = self._new_message("rest", keyed=self._chance.random() < 0.5)
                await self._post(http, connection, sent)
                await self._pause(connection)

    async def _post(self, http: HttpConnection, connection: str, sent: SentMessage) -> None:
        self.ledger.add(connection, sent)
        headers = {} if sent.key is None else {"Idempotency_Key": sent.key}
        assert sent.text is not None
        status, body = await http.ask("POST", path_of(sent.channel), sent.text.encode(), **headers)
        if status == 201:
            receipt = json.loads(body)
            self.ledger.record_accept(sent, receipt["sequence"], receipt["id"])
        elif status not in (429, 503, 507):
            self.ledger.add_violation(f"a message was answered with {status} {body!r}")

    async def lines(self) -> None:
        """Many messages in one request, answered line by line."""
        channel, connection = self._chance.choice(CHANNELS), self._connection()
        async with HttpConnection(self.running.http) as http:
            headers = {"transfer-encoding": "chunked", "content-type": "application/x-ndjson"}
            await http.begin("POST", path_of(channel), headers)
            waiting: list[SentMessage] = []
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._results(http, waiting))
                while not self.over:
                    batch = [self._new_message("lines", channel) for _ in range(self._chance.randint(1, 6))]
                    waiting.extend([self.ledger.add(connection, sent) for sent in batch])
                    body = "".join(f"{sent.text}\n" for sent in batch).encode()
                    http.send(b"%x\r\n%b\r\n" % (len(body), body))
                    await self._pause(connection)

    async def _results(self, http: HttpConnection, waiting: list[SentMessage]) -> None:
        await http.head()
        rest = b""
        async for piece in http.pieces():
            *results, rest = (rest + piece).split(b"\n")
            for result in map(json.loads, results):
                sent = waiting.pop(0)
                if "sequence" in result:
                    self.ledger.record_accept(sent, result["sequence"], result["id"])
                elif result["status"] not in (429, 503, 507):
                    self.ledger.add_violation(f"a line was answered with {result}")
        raise ConnectionClosed("the answer has ended")

    async def relay(self) -> None:
        """Broadcasts, alone and in bursts."""
        connection = self._connection()
        async with Socket(self.running.http, "/relay") as socket:
            while not self.over:
                for _ in range(self._chance.choice((1, 1, 8))):
                    sent = self._new_message("relay")
                    sent.text = None  # the gateway takes it out of the packet
                    self.ledger.add(connection, sent)
                    await socket.send(json.dumps({"type": 6, "topic": sent.channel} | sent.content))
                await self._pause(connection)

    async def streamr(self) -> None:
        """Messages that are signed, unsigned or encrypted."""
        signing_key, moment, connection = SigningKey(self._chance.randint(1, 9)), 0, self._connection()
        async with Socket(self.running.http, STREAMR) as socket:
            for message in self.repeated:
                self.ledger.resent.add(token_of(streamr_content(message)))
                await socket.send(json.dumps([2, 8, "again", message, None]))
            while not self.over:
                for kind in self._chance.choices(("signed", "unsigned", "encrypted"), k=self._chance.choice((1, 4))):
                    sent, moment = self._new_message("streamr"), max(moment + 1, time.time_ns() // 1_000_000)
                    assert sent.text is not None
                    place, chain = (moment, 0), f"{kind} {self._name}"
                    if kind == "unsigned":
                        message = unsigned(sent.channel, place, chain, sent.text)
                    elif kind == "signed":
                        message = signing_key.message(sent.channel, place, chain, sent.text)
                    else:
                        sent.content = {"encrypted": {"groupKeyId": sent.token, "content": "ab" * 40}}
                        sent.text = None
                        message = signing_key.message(sent.channel, place, chain, "ab" * 40, sent.token)
                    self.ledger.add(f"{connection} {kind}", sent)
                    self.repeated.append(message)
                    await socket.send(json.dumps([2, 8, sent.token, message, None]))
                await self._pause(connection)

    async def sprout(self) -> None:
        """Signed nodes, a few in each announce; some below others that were accepted; some sent again."""
        async with Sprout(self.running.sprout) as sprout:
            announced: dict[int, list[SentMessage]] = {}
            connection = self._connection()
            held = [sent for sent in self.ledger.accepted if sent.node]  # in an earlier life

            def answered(number: int, code: int) -> None:
                told = announced.pop(number, []) if self._sure else []
                if told and code == 4 and self.ledger.retention_runs:
                    self.ledger.record_orphans(told)
                elif told and code and not self.may_refuse(code):
                    self.ledger.add_violation(f"an announce was answered with status {code}")
                for sent in told if code == 0 else ():
                    self.ledger.record_accept(sent)
                    self._parent = sent.channel, ArborNode(sent.node or "", sent.raw)

            sprout.on_status = answered
            reading = asyncio.create_task(self._read(sprout))
            try:
                identity = author().identity()
                sprout.held[identity.id] = identity
                sprout.announce([identity])
                while not self.over:
                    some = [self._node() for _ in range(self._chance.randint(1, 3))]
                    told = [self.ledger.add(connection, sent) for sent in some]
                    if held and self._chance.random() < 0.1:
                        told.append(self.ledger.add(connection, self._chance.choice(held)))
                    if not self._sure:
                        self.ledger.resent.update(sent.token for sent in told)
                    number = sprout.announce([ArborNode(sent.node or "", sent.raw) for sent in told])
                    announced[number] = told
                    await self._pause(connection)
                    if reading.done():
                        reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def may_refuse(self, code: int) -> bool:
        """Whether an announce may be answered with the status *code*."""
        return code == 1 and "the log cannot be written" in self.running.output

    async def _read(self, sprout: Sprout) -> None:
        while True:
            await sprout.read()

    def _node(self) -> SentMessage:
        sent = self._new_message("sprout")
        parent = None
        if self._parent is not None and self._chance.random() < 0.2:
            sent.channel, parent = self._parent
            sent.parent = parent.id
        node = author().reply(self.communities[sent.channel], sent.content["content"], {}, parent)
        sent.node, sent.raw, sent.text = node.id, node.raw, None
        return sent

    # Listeners

    async def events(self, channel: str) -> None:
        """An event stream that goes on where it was cut off, from the very first message on."""
        listener = f"events of {channel}"
        async with HttpConnection(self.running.http) as http:
            last = str(self.ledger.latest.get(listener, 0))
            await http.begin("GET", f"/v1/channels/{quote(channel, safe='')}/events", {"last-event-id": last})
            status, _ = await http.head()
            if status != 200:
                raise ConnectionClosed(f"status {status}")
            reader = EventReader()
            async for piece in http.pieces():
                for event in reader.receive_data(piece):
                    if event.name == "message":
                        told = json.loads(event.data)
                        self.ledger.record_event(listener, channel, told["sequence"], told["content"])
                        self._note(listener, told["content"])
                    elif event.name == "gap":
                        gap = json.loads(event.data)
                        self.ledger.record_gap(channel, gap["after"], gap["before"])

    async def relay_listener(self) -> None:
        """A peer of the topic relay that listens to everything."""
        async with Socket(self.running.http, "/relay") as socket:
            for channel in CHANNELS:
                await socket.send(json.dumps({"type": 2, "topic": channel}))
            while True:
                frame = await socket.receive()
                if frame["type"] == 6:
                    own = {name: value for name, value in frame.items() if name not in ("type", "topic", "src")}
                    self._record_delivery(frame["topic"], own)

    async def streamr_listener(self) -> None:
        """A Streamr client that is subscribed to everything."""
        async with Socket(self.running.http, STREAMR) as socket:
            for channel in CHANNELS:
                await socket.send(json.dumps([2, 9, channel, channel, 0, None]))
            while True:
                frame = await socket.receive()
                if frame[1] == 0:
                    self._record_delivery(frame[3][1][0], streamr_content(frame[3]))

    async def sprout_listener(self) -> None:
        """An Arbor client that is subscribed to everything."""
        async with Sprout(self.running.sprout) as sprout:
            names = {community: channel for channel, community in self.communities.items()}

            def node(found: ArborNode) -> None:
                reply = author().read(found.raw)
                if reply is None or reply.community not in names or reply.keys & {"activity/1", "channel/1"}:
                    return
                content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
                self._record_delivery(names[reply.community], content)

            sprout.on_node = node
            for community in names:
                sprout.ask("subscribe {} " + community)
            await self._read(sprout)

    # Helpers

    def _note(self, listener: str, content: Any) -> None:
        """Note what a *listener* received, where that is compared."""

    def _record_delivery(self, channel: str, content: Any) -> None:
        self.ledger.record_delivery(channel, content)

    def _new_message(self, who: str, channel: str | None = None, *, keyed: bool = False) -> SentMessage:
        self._count += 1
        token = f"{who}{self._name}.{self._count}"
        content = {"content": f"{token} {'x' * self._chance.choice((0, 20, 300))}é\U0001f33f"}
        text = json.dumps(
            content, ensure_ascii=self._chance.random() < 0.5, indent=self._chance.choice((None, None, 1))
        )
        text = text.replace("\n", " ")
        channel = channel or self._chance.choice(CHANNELS)
        return SentMessage(token, channel, who, content, text, key=f"key {token}" if keyed else None)

    def _connection(self) -> str:
        return f"{self._name}/{next(self._connections)}"

    def resume(self) -> None:
        """A fault is about to happen: all clients send quickly again."""
        self._sent_counts.clear()
        self._resumed.set()
        self._resumed = asyncio.Event()

    async def _pause(self, connection: str) -> None:
        self._sent_counts[connection] += 1
        if self._sent_counts[connection] < FAST_MESSAGES:
            await asyncio.sleep(self._chance.uniform(0, 2 * PAUSE))
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._resumed.wait(), self._chance.uniform(0, 2 * SLOW_PAUSE))

    @staticmethod
    def _of(listener: Callable[[str], Coroutine[Any, Any, None]], channel: str) -> ClientTask:
        return lambda: listener(channel)

    async def _reconnect(self, client: ClientTask, over: Callable[[], bool]) -> None:
        while not over():
            await until_disconnected(client())
            await asyncio.sleep(RECONNECT_SECONDS)


def path_of(channel: str) -> str:
    """Where a channel's messages are."""
    return f"/v1/channels/{quote(channel, safe='')}/messages"


def streamr_content(message: list[Any]) -> Any:
    """The content of a stream message, as other protocols show it."""
    if message[5] == 2:
        return {"encrypted": {"groupKeyId": message[6], "content": message[7]}}
    return json.loads(message[7])
