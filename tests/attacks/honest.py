"""Honest peers, in a process of their own: a publisher and a listener of each protocol, who measure delivery times.

The process sends `ready`. It answers everything that it receives, when nothing is outstanding any more or after `DRAIN`
seconds, with all samples since its last answer: [(kind, when, seconds, work), ...]. `when` is time.monotonic(). `work`
is how much CPU time the gateway took meanwhile: that tells what came first, however busy the machine is. Both are None
for what never came.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection

from gateway.commands.arbor_author import ArborAuthor
from gateway.demo_clients import ArborNode, Client, RelayClient, RestClient, SproutClient, StreamrClient
from gateway.demo_clients.client import trust

INTERVAL = 0.05  # seconds between two messages of a pair; the kinds take turns in it, and none waits for another one's
MOST = 40  # of a kind under way, 2 seconds' worth; beyond that a publisher waits until one arrives
DRAIN = 15.0
AHEAD = 200  # nodes signed before it begins: a signature would hold up the others for a millisecond

Send = Callable[[int], Awaitable[object]]
Sample = tuple[str, float, float | None, float | None]


class PresignedAuthor(ArborAuthor):
    """An author whose replies were signed beforehand, as long as they last."""

    def __init__(self, name: str, community: str) -> None:
        super().__init__(name)
        self._texts = [self._signed(community, str(n)) for n in range(AHEAD)]

    def _signed(self, community: str, text: str) -> ArborNode:
        return super().reply(community, text, {})

    def reply(self, community: str, text: str, twig: dict[str, str]) -> ArborNode:
        """The next reply, whose text is its number."""
        number = int(text)
        return self._texts[number] if number < len(self._texts) else super().reply(community, text, twig)


class DeliveryTimes:
    """When each message was sent and received. *pid* is the gateway."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Sample] = []
        self._clock = ~pid << 3 | 2  # of the CPU time of a process, as clock_getcpuclockid(3) makes it
        self._waiting: dict[tuple[str, int], tuple[float, float]] = {}

    def sent(self, kind: str, number: int) -> None:
        """Message *number* is being sent."""
        self._waiting[kind, number] = time.monotonic(), time.clock_gettime(self._clock)

    def waiting(self, kind: str) -> int:
        """How many of a *kind* have not come."""
        return sum(1 for each, _ in self._waiting if each == kind)

    def received(self, kind: str, number: int) -> None:
        """Message *number* has arrived."""
        if (sent := self._waiting.pop((kind, number), None)) is not None:
            when, work = sent
            self.samples.append((kind, when, time.monotonic() - when, time.clock_gettime(self._clock) - work))

    async def settle(self) -> list[Sample]:
        """All samples up to now; what has not come is lost."""
        due, now = set(self._waiting), time.monotonic()
        while due & self._waiting.keys() and time.monotonic() < now + DRAIN:
            await asyncio.sleep(0.02)
        self.samples += [(kind, self._waiting.pop((kind, n))[0], None, None) for kind, n in due & self._waiting.keys()]
        samples, self.samples = self.samples, []
        return samples


async def repeat(times: DeliveryTimes, kind: str, act: Send, first: float) -> None:
    """Start *act* every `INTERVAL` seconds from *first* on (time.monotonic); neither wait for its end nor catch up."""
    tasks = set[asyncio.Task[None]]()
    due = first
    for number in count():
        await asyncio.sleep(max(0, due - time.monotonic()))
        if times.waiting(kind) < MOST:
            times.sent(kind, number)
            task = asyncio.create_task(_done(act, number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        due += INTERVAL * (1 + max(0, time.monotonic() - due) // INTERVAL)


async def _done(act: Send, number: int) -> None:
    try:
        await act(number)
    except Exception as error:  # it is lost, and the report says so
        sys.stderr.write(f"honest: {error!r}\n")


async def pair(times: DeliveryTimes, kind: str, send: Send, listener: Client, first: float) -> None:
    """Publish by *send*, and receive at *listener*."""
    await listener.subscribe(f"honest/{kind}")

    async def receive() -> None:
        while True:
            content = (await listener.received.get()).content
            times.received(kind, int(content["content"]))

    receiving = asyncio.create_task(receive())
    try:
        await repeat(times, kind, send, first)
    finally:
        receiving.cancel()


class KeptConnection:
    """An HTTP connection that is kept open; requests go one after another."""

    def __init__(self, http: str, status: bytes) -> None:
        self._tls = trust() if http.startswith("https") else None
        self._host, _, self._port = http.rpartition("/")[2].rpartition(":")
        self._status = status
        self._turn = asyncio.Lock()
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, int(self._port), ssl=self._tls)

    async def ask(self, request: bytes) -> None:
        """Make a request; `ValueError` where the answer is another."""
        async with self._turn:
            reader, writer = self._stream = self._stream or await self._dial()
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                body = await reader.readexactly(int(size.partition(b":")[2]))
            except BaseException:
                self._stream = None
                writer.close()
                raise
        if not head.startswith(b"HTTP/1.1 " + self._status):
            raise ValueError((head + body).decode())


def publisher(speaker: Client) -> Send:
    """Publishes a number as *speaker*."""
    return lambda number: speaker.publish(f"honest/{speaker.protocol}", {"content": str(number)})


def head(http: str, key: str | None, request: str) -> str:
    """The head of a request, but for its length."""
    host = http.rpartition("/")[2]
    return f"{request} HTTP/1.1\r\nHost: {host}\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")


def rest_publisher(times: DeliveryTimes, http: str, key: str | None) -> Send:
    """Publishes a number by REST; acceptance is measured as a kind of its own."""
    connection, first = KeptConnection(http, b"201"), head(http, key, "POST /v1/channels/honest%2Frest/messages")

    async def post(number: int) -> None:
        times.sent("post", number)
        body = f'{{"content":"{number}"}}'
        await connection.ask(f"{first}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        times.received("post", number)

    return post


def readiness_poller(times: DeliveryTimes, http: str, key: str | None) -> Send:
    """Requests whether the gateway is ready."""
    connection, text = KeptConnection(http, b"200"), (head(http, key, "GET /readyz") + "\r\n").encode()

    async def poll(number: int) -> None:
        await connection.ask(text)
        times.received("readyz", number)

    return poll


def run(http: str, sprout: str, pid: int, key: str | None, env: dict[str, str], connection: Connection) -> None:
    """Publish and listen at the gateway, process *pid*, until *connection* ends; *env* is added to the environment."""
    os.environ.update(env)
    asyncio.run(_run(http, sprout, pid, key, connection))


async def _run(http: str, sprout: str, pid: int, key: str | None, connection: Connection) -> None:
    times = DeliveryTimes(pid)
    community = await SproutClient(http, sprout, ArborAuthor("finder"), key).community("honest/sprout")
    speakers = (
        RelayClient(http, key),
        StreamrClient(http, key),
        SproutClient(http, sprout, PresignedAuthor("honest", community), key),
    )
    listeners: list[Client] = [
        RelayClient(http, key), StreamrClient(http, key), SproutClient(http, sprout, ArborAuthor("b"), key),
        RestClient(http, key),
    ]  # fmt: skip
    for client in (*speakers, *listeners):
        await client.__aenter__()
    publishers = [*map(publisher, speakers), rest_publisher(times, http, key)]
    begin, kinds = time.monotonic() + INTERVAL, len(publishers) + 1
    *starts, last = (begin + INTERVAL * n / kinds for n in range(kinds))
    tasks = [
        asyncio.create_task(pair(times, listener.protocol, send, listener, first))
        for send, listener, first in zip(publishers, listeners, starts, strict=True)
    ]
    tasks.append(asyncio.create_task(repeat(times, "readyz", readiness_poller(times, http, key), last)))
    connection.send("ready")
    try:
        with suppress(EOFError):
            while True:
                await asyncio.to_thread(connection.recv)
                connection.send(await times.settle())
                for task in tasks:
                    if task.done():
                        task.result()
    finally:
        for task in tasks:
            task.cancel()
