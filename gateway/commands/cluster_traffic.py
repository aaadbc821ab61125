"""Programs that publish and listen at the gateways of a cluster while parts of it are killed, and what they found.

For `trellis cluster demo`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count

from gateway.client import Interrupted, Message, Subscription, TrellisClient, TrellisError, Welcome

from .cluster_parts import DemoMember

CHANNEL = "demo/traffic"
BEGIN = 20  # messages that each program has published before anything is killed
PAUSE_SECONDS = 0.01  # between messages of one program
HEARD_SECONDS = 30.0  # after the last message, until every listener has received it


class Traffic:
    """At each gateway one program that publishes and one that listens; if it is gone, they go on at another one."""

    def __init__(self) -> None:
        self.accepted: dict[int, str] = {}  # what was published, by its sequence
        self.faults: list[str] = []
        self._heard: dict[str, list[tuple[int, str]]] = {}  # by the name of the first gateway
        self._publishers: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._stopping = False

    async def begin(self, members: list[DemoMember], stack: AsyncExitStack) -> None:
        """Publish and listen at *members*; returns when every program has published some messages."""
        stack.push_async_callback(self._cancel)
        for at in range(len(members)):
            order = [*members[at:], *members[:at]]
            ready = asyncio.Event()
            self._heard[members[at].name] = []
            self._listeners.append(asyncio.create_task(self._listen(order, ready)))
            await ready.wait()
        begun = [asyncio.Event() for _ in members]
        for at, event in enumerate(begun):
            order = [*members[at:], *members[:at]]
            self._publishers.append(asyncio.create_task(self._publish(order, event)))
        for event in begun:
            await event.wait()

    async def end(self) -> None:
        """Let every program finish what it has begun, and wait until all listeners heard everything."""
        self._stopping = True
        await asyncio.gather(*self._publishers)
        last = max(self.accepted)
        try:
            async with asyncio.timeout(HEARD_SECONDS):
                while not all(heard and heard[-1][0] >= last for heard in self._heard.values()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.faults.append(f"not everybody heard message {last}")

    async def check(self, members: list[DemoMember]) -> None:
        """Check that every accepted message was received, and is in the history of each of *members*."""
        for name, heard in self._heard.items():
            self._compare(f"what was heard at {name}", heard)
        for member in members:
            async with TrellisClient(f"http://{member.http}") as client:
                history = [(each.sequence or 0, str(each.content)) async for each in client.history(CHANNEL)]
            self._compare(f"the history of {member.name}", sorted(history))

    def _compare(self, what: str, found: list[tuple[int, str]]) -> None:
        sequences = [sequence for sequence, _ in found]
        if sequences != sorted(set(sequences)):
            self.faults.append(f"{what} is out of order, or has something twice")
        if len({text for _, text in found}) != len(found):
            self.faults.append(f"{what} has a text twice")
        if missing := set(self.accepted.items()) - set(found):
            self.faults.append(f"{what} lacks {len(missing)} accepted messages")

    async def _publish(self, order: list[DemoMember], begun: asyncio.Event) -> None:
        for number in count(1):
            text = f"{order[0].name} {number}"
            if self._stopping:
                return
            await self._publish_one(order, text)
            if number == BEGIN:
                begun.set()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _publish_one(self, order: list[DemoMember], text: str) -> None:
        """Publish *text* at the first gateway that runs, as often as it takes."""
        while True:
            member = next(member for member in order if member.process.runs)
            try:
                async with TrellisClient(f"http://{member.http}", retry_seconds=0) as client:
                    receipt = await client.publish(CHANNEL, text, idempotency_key=text)
            except TrellisError as error:
                if not error.temporary:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self.accepted[receipt.sequence] = text
                return

    async def _listen(self, order: list[DemoMember], ready: asyncio.Event) -> None:
        """Listen at the first gateway that runs, behind what was heard before; look again if it ends."""
        last: int | None = None
        while True:
            member = next(member for member in order if member.process.runs)
            async with TrellisClient(f"http://{member.http}", retry_seconds=0) as client:
                subscription = client.subscribe(CHANNEL, after=last)
                try:
                    await self._hear(subscription, self._heard[order[0].name], ready)
                except TrellisError as error:
                    if not error.temporary:
                        raise
                    await asyncio.sleep(PAUSE_SECONDS)
                last = subscription.last

    @staticmethod
    async def _hear(subscription: Subscription, heard: list[tuple[int, str]], ready: asyncio.Event) -> None:
        """Note what *subscription* brings, until it is interrupted."""
        async for event in subscription:
            if isinstance(event, Message):
                heard.append((event.sequence or 0, str(event.content)))
            elif isinstance(event, Welcome):
                ready.set()
            elif isinstance(event, Interrupted):
                return

    async def _cancel(self) -> None:
        for task in (*self._publishers, *self._listeners):
            task.cancel()
        await asyncio.gather(*self._publishers, *self._listeners, return_exceptions=True)
