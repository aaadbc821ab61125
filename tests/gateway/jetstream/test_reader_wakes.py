"""A reader misses nothing that arrives while it waits for a busy connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from nats.js.manager import JetStreamManager

from gateway.jetstream import reader
from gateway.jetstream.reader import PORTION, EntryReader, StreamEntry

TURNS = 10_000  # of the loop; only a reader that waits for its time to pass needs more
BATCH_COMPLETED = {"Status": "409", "Description": "Batch Completed", "Nats-Pending-Messages": "0"}
CONSUMER_DELETED = {"Status": "409", "Description": "Consumer Deleted"}


class BusyConnection:
    """A client of NATS, and its stream, whose calls wait.

    While a call waits, the function that `meanwhile` has under its name is run, once. What the reader reads is
    acknowledged at once, unless it `is_slow`. `calls` has the names of its calls.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "SILENCE_SECONDS", 3600.0)
        monkeypatch.setattr(reader, "RETRY_SECONDS", 0.0)
        # A reader that an earlier test left behind in a thread keeps its own manager.
        monkeypatch.setattr(
            reader, "JetStreamManager", lambda client: self if client is self else JetStreamManager(client)
        )
        self.calls: list[str] = []
        self.meanwhile: dict[str, Callable[[], Awaitable[None]]] = {}
        self.sent = 0  # messages
        self.is_slow = False
        self.reader = EntryReader(self, "test", 0, self._receive)  # type: ignore[arg-type]

    def count(self, name: str) -> int:
        return self.calls.count(name)

    async def until(self, true: Callable[[], bool]) -> None:
        """Let the reader run until something is *true*."""
        task = asyncio.create_task(self.reader.run())
        try:
            for _ in range(TURNS):
                if true():
                    return
                await asyncio.sleep(0)
            raise AssertionError("a wake-up was missed")
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def restart(self) -> None:
        """What happens once the connection is a new one."""
        self.reader.restart()

    async def send_portion(self) -> None:
        """Everything that was asked for comes."""
        for _ in range(PORTION):
            self.sent += 1
            metadata = SimpleNamespace(sequence=SimpleNamespace(stream=self.sent), timestamp=datetime.now(UTC))
            await self._hear(SimpleNamespace(reply="$JS.ACK", metadata=metadata, data=b"x", headers=None))

    async def complete_portion(self) -> None:
        """A portion comes, after which some servers say so (2.15 does)."""
        await self.send_portion()
        await self._hear(SimpleNamespace(reply="", headers=BATCH_COMPLETED))

    async def send_heartbeat(self) -> None:
        """The server says that it still has the consumer."""
        await self._hear(SimpleNamespace(reply="", headers={"Status": "100"}))

    async def end_consumer(self) -> None:
        """The consumer is deleted, as by a server that stops."""
        await self._hear(SimpleNamespace(reply="", headers=CONSUMER_DELETED))

    def _receive(self, entries: list[StreamEntry]) -> None:
        if not self.is_slow:
            self.reader.acknowledge_read(entries[-1].position)

    async def _wait(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)
        if (call := self.meanwhile.pop(name, None)) is not None:
            await call()
        await asyncio.sleep(0)

    # What the reader calls

    async def stream_info(self, _name: str) -> Any:
        await self._wait("stream_info")
        return SimpleNamespace(cluster=None, state=SimpleNamespace(first_seq=1, last_seq=10 * PORTION))

    async def add_consumer(self, _name: str, _config: object) -> Any:
        await self._wait("add_consumer")
        return SimpleNamespace(name="consumer")

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, _inbox: str, cb: Callable[[Any], Awaitable[None]]) -> Any:
        self._hear = cb
        await self._wait("subscribe")
        return self

    async def unsubscribe(self) -> None:
        await self._wait("unsubscribe")

    async def publish(self, _subject: str, _data: bytes, reply: str) -> None:  # noqa: ARG002
        await self._wait("publish")


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> BusyConnection:
    return BusyConnection(monkeypatch)


def test_a_portion_that_comes_while_asking_waits_is_followed_by_the_next(connection: BusyConnection) -> None:
    connection.meanwhile["publish"] = connection.send_portion
    asyncio.run(connection.until(lambda: connection.count("publish") == 2))
    assert connection.reader.position == PORTION
    assert connection.count("add_consumer") == 1


def test_a_complete_portion_does_not_end_the_consumer(connection: BusyConnection) -> None:
    connection.meanwhile["publish"] = connection.complete_portion
    asyncio.run(connection.until(lambda: connection.count("publish") == 2))
    assert connection.count("add_consumer") == 1


def test_a_consumer_that_ends_while_asking_waits_is_replaced(connection: BusyConnection) -> None:
    connection.meanwhile["publish"] = connection.end_consumer
    asyncio.run(connection.until(lambda: connection.count("add_consumer") == 2))


@pytest.mark.parametrize("name", ["stream_info", "add_consumer", "subscribe", "publish"])
def test_a_new_connection_creates_a_new_consumer_during_any_wait(connection: BusyConnection, name: str) -> None:
    """What was asked for may have been lost with the old one."""
    connection.meanwhile[name] = connection.restart
    asyncio.run(connection.until(lambda: connection.count("add_consumer") == 2))
    assert connection.count("publish") == (name == "publish")


async def _take_slowly(connection: BusyConnection) -> None:
    async def publish(portions: int) -> None:
        for _ in range(TURNS):
            if connection.count("publish") == portions:
                return
            await asyncio.sleep(0)
        raise AssertionError("the reader sleeps")

    connection.is_slow = True
    task = asyncio.create_task(connection.reader.run())
    for portions in range(1, 4):  # two that may wait, and one more
        await publish(portions)
        await connection.send_portion()
    for _ in range(50):
        await asyncio.sleep(0)
    assert connection.count("publish") == 3, "too much is not taken"
    assert connection.reader.acknowledge_read(connection.sent)
    connection.reader.go_on()
    await publish(4)
    assert not connection.reader.acknowledge_read(connection.sent), "it waits no longer"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_reader_that_waits_until_more_is_taken_is_woken_then(connection: BusyConnection) -> None:
    asyncio.run(_take_slowly(connection))


class ClockedLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own."""

    now = 0.0

    def time(self) -> float:
        return self.now


async def _listen_to(connection: BusyConnection, loop: ClockedLoop) -> None:
    async def settle() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    task = asyncio.create_task(connection.reader.run())
    await settle()
    for _ in range(3):
        loop.now += 0.6 * reader.SILENCE_SECONDS
        await connection.send_heartbeat()
        await settle()
    assert connection.count("publish") == 1, "it waits on"
    loop.now += 1.1 * reader.SILENCE_SECONDS
    await settle()
    assert connection.count("add_consumer") == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_consumer_that_is_silent_for_too_long_is_replaced(connection: BusyConnection) -> None:
    loop = ClockedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_listen_to(connection, loop))
