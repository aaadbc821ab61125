"""Clients that publish and listen at a cluster, and reconnect to another gateway every few seconds."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from gateway.demo_clients import ArborNode
from tests.faults.harness.connections import ConnectionClosed, RequestRefused, Socket, Sprout, until_disconnected
from tests.faults.harness.fork_server import GatewayProcess
from tests.faults.harness.ledger import Ledger, token_of
from tests.faults.harness.load import (
    CHANNELS,
    RECONNECT_SECONDS,
    STREAMR,
    ClientTask,
    LoadClients,
    author,
    streamr_content,
)

REPEATED = 3  # messages that a Streamr client publishes again when it connects again
CLOCKS = 400_000  # ms by which the times of messages may differ from the order in which they were accepted
NODES = 2_000  # that a Sprout client asks for when it connects again
REFUSALS = frozenset({"congested", "unavailable", "too-many-requests", "outcome-unknown"})


class RoamingClients(LoadClients):
    """Clients of a cluster; each stays *stay* seconds at a gateway, from and to. *where* gives one that runs.

    Listeners receive everything, however often they reconnect: they request what they missed, as their protocol has it.
    The topic relay has no history: a connection receives a part of the channel without a gap.
    """

    def __init__(
        self,
        where: Callable[[], GatewayProcess],
        ledger: Ledger,
        chance: random.Random,
        stay: tuple[float, float],
    ) -> None:
        super().__init__(where, ledger, chance, "c", sure=True)
        self._stay = stay
        self.repeated = deque[Any](maxlen=REPEATED)
        self.heard_by: dict[str, dict[str, None]] = {}  # tokens, by listener
        self.relay_heard: list[dict[str, list[str]]] = []  # of each connection, by channel
        self._streamr_last: dict[str, int] = {}  # ms, by channel

    def listeners(self) -> list[ClientTask]:
        """Those of every gateway, and pages."""
        return [*super().listeners(), *(self._of(self.page_listener, channel) for channel in CHANNELS)]

    def publishers(self) -> list[ClientTask]:
        """Those of every gateway, and a page."""
        return [*super().publishers(), self.page]

    def may_refuse(self, code: int) -> bool:
        """Whether an announce may be answered with the status *code*."""
        return code == 1

    async def _reconnect(self, client: ClientTask, over: Callable[[], bool]) -> None:
        while not over():
            await until_disconnected(self._for_a_while(client))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _for_a_while(self, client: ClientTask) -> None:
        async with asyncio.timeout(None if self.over else self._chance.uniform(*self._stay)):
            await client()

    # Publishers

    async def page(self) -> None:
        """Messages by /v1/ws; what was not answered is published again with its key."""
        connection = self._connection()
        unanswered = [sent for sent in self.ledger.messages.values() if sent.protocol == "page" and not sent.accepted]
        async with Socket(self.running.http, "/v1/ws") as socket:
            while not self.over:
                sent = unanswered.pop() if unanswered else self._new_message("page", keyed=True)
                sent.text = None  # it is decoded with the rest of the order
                self.ledger.add(connection, sent)
                order = {"type": "publish", "request": sent.token, "channel": sent.channel, "idempotencyKey": sent.key}
                await socket.send(json.dumps(order | {"content": sent.content}))
                answer = await socket.answer(lambda frame: frame.get("request") == sent.token)  # noqa: B023
                if answer["type"] == "published":
                    self.ledger.record_accept(sent, answer["sequence"], answer["id"])
                elif answer["problem"]["code"] not in REFUSALS:
                    self.ledger.add_violation(f"a publish by /v1/ws was answered with {answer}")
                await self._pause(connection)

    # Listeners

    async def page_listener(self, channel: str) -> None:
        """A page that subscribes after the last message that it received."""
        listener = f"page of {channel}"
        async with Socket(self.running.http, "/v1/ws") as socket:
            last = self.ledger.latest.get(listener, 0)
            await socket.send(json.dumps({"type": "subscribe", "request": 1, "channel": channel, "after": last}))
            while True:
                frame = await socket.receive()
                if frame["type"] == "message":
                    self.ledger.record_event(listener, channel, frame["sequence"], frame["content"])
                    self._note(listener, frame["content"])
                elif frame["type"] == "gap":
                    self.ledger.record_gap(channel, frame["after"], frame["before"])
                elif frame["type"] == "error":
                    raise ConnectionClosed(str(frame))

    async def relay_listener(self) -> None:
        """A peer of the topic relay; each connection receives a part of the channel."""
        heard: dict[str, list[str]] = {channel: [] for channel in CHANNELS}
        self.relay_heard.append(heard)
        async with Socket(self.running.http, "/relay") as socket:
            for channel in CHANNELS:
                await socket.send(json.dumps({"type": 2, "topic": channel}))
            while True:
                frame = await socket.receive()
                if frame["type"] == 6:
                    own = {name: value for name, value in frame.items() if name not in ("type", "topic", "src")}
                    self._record_delivery(frame["topic"], own)
                    heard[frame["topic"]].append(token_of(own))

    async def streamr_listener(self) -> None:
        """A Streamr client that asks for what it missed."""
        async with Socket(self.running.http, STREAMR) as socket:
            for channel in CHANNELS:
                await socket.send(json.dumps([2, 9, channel, channel, 0, None]))
                since = max(0, self._streamr_last.get(channel, 0) - CLOCKS)
                await socket.send(json.dumps([2, 12, f"resend {channel}", channel, 0, [since, 0], None, None]))
            resent: set[str] = set()
            while True:
                frame = await socket.receive()
                if frame[1] == 7:
                    raise ConnectionClosed(str(frame))
                if frame[1] in (0, 1):
                    self._streamr_received(frame[3], resent if frame[1] == 1 else None)

    def _streamr_received(self, message: list[Any], resent: set[str] | None) -> None:
        channel, content = message[1][0], streamr_content(message)
        token = token_of(content)
        if resent is not None:
            if token in resent:
                self.ledger.add_violation(f"one resend has {token} twice")
            resent.add(token)
        self._streamr_last[channel] = max(message[1][2], self._streamr_last.get(channel, 0))
        self._record_delivery(channel, content)
        self._note("streamr", content)

    async def sprout_listener(self) -> None:
        """An Arbor client that asks for the newest nodes when it connects again."""
        async with Sprout(self.running.sprout) as sprout:
            names = {community: channel for channel, community in self.communities.items()}

            def node(found: ArborNode) -> None:
                reply = author().read(found.raw)
                if reply is None or reply.community not in names or reply.keys & {"activity/1", "channel/1"}:
                    return
                content = json.loads(reply.text) if "json/1" in reply.keys else {"content": reply.text}
                self._record_delivery(names[reply.community], content)
                self._note("sprout", content)

            sprout.on_node = node
            for community in names:
                sprout.ask("subscribe {} " + community)
            try:
                for found in await sprout.response(f"list {{}} 2 {NODES}"):
                    node(found)
            except RequestRefused as refused:
                raise ConnectionClosed(str(refused)) from refused
            await self._read(sprout)

    def _note(self, listener: str, content: Any) -> None:
        self.heard_by.setdefault(listener, {})[token_of(content)] = None
