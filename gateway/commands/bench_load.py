"""The load of `trellis bench`: messages at a pace, by REST and by WebSocket, and listeners that measure latency."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from websockets.exceptions import WebSocketException

from gateway.client import TrellisClient, TrellisError
from gateway.demo_clients import Client, RelayClient, RestClient

MOST_UNDER_WAY = 64  # publishes at a time; a gateway that takes longer gets fewer a second
DRAIN_SECONDS = 5.0  # for the last messages to arrive
BEHIND_SECONDS = 1.0  # of messages that have not arrived yet; with more the load ends, so that it does no harm
PADDING = "."
TITLES = {RestClient.protocol: "REST", RelayClient.protocol: "WebSocket"}  # of listeners, by their protocols

Publish = Callable[[Any], Awaitable[object]]


@dataclass
class BenchFlow:
    """Messages from one way of publishing to one way of listening; latencies are in seconds."""

    name: str
    expected: int = 0
    latencies: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float | None:
        """Return the latency that *share* of all do not exceed; None if nothing arrived."""
        found = sorted(self.latencies)
        return found[min(int(len(found) * share), len(found) - 1)] if found else None

    def row(self) -> dict[str, Any]:
        """Return the flow for programs; latencies in milliseconds."""
        shares = {"median": 0.5, "p99": 0.99, "longest": 1.0}
        found = {name: self.percentile(share) for name, share in shares.items()}
        in_ms = {name: None if value is None else round(value * 1000, 2) for name, value in found.items()}
        return {"flow": self.name, "expected": self.expected, "arrived": len(self.latencies), "milliseconds": in_ms}


@dataclass(frozen=True)
class Load:
    """What is asked of the gateway: *rate* messages a second of *size* bytes for *seconds*, to so many listeners."""

    url: str
    key: str | None
    channel: str
    seconds: float
    rate: float
    listeners: int
    size: int


@dataclass
class BenchOutcome:
    """What came of it. *published* is how many a second were sent by each way; *refused* are the reasons.

    *left_out* says why one of the ways was not measured, and *ended_early* names those that were too much.
    """

    flows: list[BenchFlow] = field(default_factory=list)
    published: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    left_out: str | None = None
    ended_early: list[str] = field(default_factory=list)


async def run(load: Load) -> BenchOutcome:
    """Put the load on the gateway, first by REST, then by WebSocket."""
    outcome = BenchOutcome()
    async with AsyncExitStack() as stack:
        program = await stack.enter_async_context(TrellisClient(load.url, load.key, retry_seconds=0))
        await program.create(load.channel)
        relay = await _relay(load, outcome, stack)
        kinds: tuple[type[RestClient | RelayClient], ...] = (RestClient, *([] if relay is None else [RelayClient]))
        listeners: list[Client] = []
        for number in range(load.listeners):
            client = await stack.enter_async_context(kinds[number % len(kinds)](load.url, load.key))
            await client.subscribe(load.channel)
            listeners.append(client)
        accepted = BenchFlow("REST, until it is on disk")
        outcome.flows.append(accepted)

        async def publish(content: Any) -> None:
            begin = time.perf_counter()
            await program.publish(load.channel, content)
            accepted.latencies.append(time.perf_counter() - begin)

        accepted.expected = await _Phase(load, outcome, "REST", publish, listeners).run()
        if relay is not None:
            await _Phase(load, outcome, "WebSocket", partial(relay.publish, load.channel), listeners).run()
        await _tidy(program, load.channel)
    return outcome


async def _relay(load: Load, outcome: BenchOutcome, stack: AsyncExitStack) -> RelayClient | None:
    """Connect to the topic relay; return None if the gateway has none, or does not let the key in."""
    try:
        return await stack.enter_async_context(RelayClient(load.url, load.key))
    except (OSError, WebSocketException) as error:
        outcome.left_out = f"WebSocket is left out: {error or type(error).__name__}"
        return None


class _Phase:
    """Publishing in one way, *name*, and what every listener receives of it."""

    def __init__(self, load: Load, outcome: BenchOutcome, name: str, publish: Publish, listeners: list[Client]) -> None:
        self._load = load
        self._outcome = outcome
        self._name = name
        self._publish = publish
        self._listeners = listeners
        self._flows = {kind: BenchFlow(f"{name} to {title}") for kind, title in TITLES.items()}
        self._sent: dict[str, float] = {}  # when each message was, by its id

    async def run(self) -> int:
        """Publish, and wait until every listener has everything or is gone; return how many messages were sent."""
        async with anyio.create_task_group() as hearing:
            for listener in self._listeners:
                hearing.start_soon(self._hear, listener)
            begin = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                await self._publish_all(tasks, begin)
            self._outcome.published[self._name] = round(len(self._sent) / (time.perf_counter() - begin), 1)
            for listener in self._listeners:
                self._flows[listener.protocol].expected += len(self._sent)
            with anyio.move_on_after(DRAIN_SECONDS):
                while any(len(flow.latencies) < flow.expected for flow in self._flows.values()):
                    await anyio.sleep(0.01)
            hearing.cancel_scope.cancel()
        self._outcome.flows += [flow for flow in self._flows.values() if flow.expected]
        return len(self._sent)

    async def _publish_all(self, tasks: TaskGroup, begin: float) -> None:
        """Publish at the pace of the load, for its time or until the gateway is behind."""
        load, number = self._load, 0
        free = anyio.CapacityLimiter(MOST_UNDER_WAY)
        while (now := time.perf_counter()) < begin + load.seconds:
            if self._is_behind():
                self._outcome.ended_early.append(self._name)
                return
            id = f"{self._name} {number}"
            await free.acquire_on_behalf_of(id)
            tasks.start_soon(self._publish_one, id, free)
            number += 1
            await anyio.sleep(max(0.0, begin + number / load.rate - now))

    def _is_behind(self) -> bool:
        """Whether the listeners wait for more than is published in `BEHIND_SECONDS`."""
        heard = sum(len(flow.latencies) for flow in self._flows.values())
        allowed = max(1.0, self._load.rate * BEHIND_SECONDS) * len(self._listeners)
        return len(self._sent) * len(self._listeners) - heard > allowed

    async def _publish_one(self, id: str, free: anyio.CapacityLimiter) -> None:
        self._sent[id] = time.perf_counter()
        try:
            await self._publish({"bench": id, "padding": PADDING * self._load.size})
        except (TrellisError, OSError, WebSocketException) as error:
            del self._sent[id]
            self._outcome.refused.append(str(error) or type(error).__name__)
        finally:
            free.release_on_behalf_of(id)

    async def _hear(self, listener: Client) -> None:
        """Measure when messages reach *listener*."""
        flow = self._flows[listener.protocol]
        while True:
            message = await listener.received.get()
            if (begin := self._sent.get(message.content.get("bench"))) is not None:
                flow.latencies.append(time.perf_counter() - begin)


async def _tidy(program: TrellisClient, channel: str) -> None:
    """Take the channel off the list, if the key may; its messages remain as long as any others."""
    with suppress(TrellisError):
        await program.close(channel)
