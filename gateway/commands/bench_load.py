"""The load of `trellis bench`: messages at a pace, by REST and by WebSocket, and listeners that measure latency."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup
from websockets.exceptions import WebSocketException

from gateway.client import TrellisClient, TrellisError
from gateway.clients import Client, RelayClient, RestClient

MOST_UNDER_WAY = 64  # publishes at a time; a gateway that takes longer gets fewer a second
DRAIN_SECONDS = 5.0  # for the last messages to arrive
PADDING = "."

Publish = Callable[[Any], Awaitable[object]]


@dataclass
class Flow:
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
class Outcome:
    """What came of it. *published* is how many a second were sent by each way; *refused* are the reasons.

    *left_out* says why one of the ways was not measured.
    """

    flows: list[Flow] = field(default_factory=list)
    published: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    left_out: str | None = None


async def run(load: Load) -> Outcome:
    """Put the load on the gateway, first by REST, then by WebSocket."""
    outcome = Outcome()
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
        accepted = Flow("REST, until it is on disk")
        outcome.flows.append(accepted)

        async def publish(content: Any) -> None:
            begin = time.perf_counter()
            await program.publish(load.channel, content)
            accepted.latencies.append(time.perf_counter() - begin)

        await _phase(load, outcome, "REST", publish, listeners)
        accepted.expected = round(outcome.published["REST"] * load.seconds)
        if relay is not None:
            await _phase(load, outcome, "WebSocket", partial(relay.say, load.channel), listeners)
        await _tidy(program, load.channel)
    return outcome


async def _relay(load: Load, outcome: Outcome, stack: AsyncExitStack) -> RelayClient | None:
    """Connect to the topic relay; return None if the gateway has none, or does not let the key in."""
    try:
        return await stack.enter_async_context(RelayClient(load.url, load.key))
    except (OSError, WebSocketException) as error:
        outcome.left_out = f"WebSocket is left out: {error or type(error).__name__}"
        return None


async def _phase(load: Load, outcome: Outcome, name: str, publish: Publish, listeners: list[Client]) -> None:
    """Publish for the time of the load, and wait until every listener has heard everything or no longer hears."""
    flows = {kind: Flow(f"{name} to {title}") for kind, title in (("rest", "REST"), ("topic_relay", "WebSocket"))}
    sent: dict[str, float] = {}
    async with _hearing(listeners, flows, sent):
        number = 0
        begin = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            free = anyio.CapacityLimiter(MOST_UNDER_WAY)
            while (now := time.perf_counter()) < begin + load.seconds:
                id = f"{name} {number}"
                content = {"bench": id, "padding": PADDING * load.size}
                await _start(tasks, free, outcome, sent, id, partial(publish, content))
                number += 1
                await anyio.sleep(max(0.0, begin + number / load.rate - now))
        outcome.published[name] = round(len(sent) / load.seconds, 1)
        for listener in listeners:
            flows[listener.protocol].expected += len(sent)
        with anyio.move_on_after(DRAIN_SECONDS):
            while any(len(flow.latencies) < flow.expected for flow in flows.values()):
                await anyio.sleep(0.01)
    outcome.flows += [flow for flow in flows.values() if flow.expected]


async def _start(
    tasks: TaskGroup,
    free: anyio.CapacityLimiter,
    outcome: Outcome,
    sent: dict[str, float],
    id: str,
    publish: Callable[[], Awaitable[object]],
) -> None:
    """Start to publish once fewer than `MOST_UNDER_WAY` are under way."""

    async def act() -> None:
        sent[id] = time.perf_counter()
        try:
            await publish()
        except (TrellisError, OSError, WebSocketException) as error:
            del sent[id]
            outcome.refused.append(str(error) or type(error).__name__)
        finally:
            free.release_on_behalf_of(id)

    await free.acquire_on_behalf_of(id)
    tasks.start_soon(act)


@asynccontextmanager
async def _hearing(listeners: list[Client], flows: dict[str, Flow], sent: dict[str, float]) -> AsyncIterator[None]:
    """Let all *listeners* measure what they hear."""

    async def hear(listener: Client) -> None:
        while True:
            message = await listener.heard.get()
            if (begin := sent.get(message.content.get("bench"))) is not None:
                flows[listener.protocol].latencies.append(time.perf_counter() - begin)

    async with anyio.create_task_group() as tasks:
        for listener in listeners:
            tasks.start_soon(hear, listener)
        yield
        tasks.cancel_scope.cancel()


async def _tidy(program: TrellisClient, channel: str) -> None:
    """Take the channel off the list, if the key may; its messages remain as long as any others."""
    with suppress(TrellisError):
        await program.close(channel)
