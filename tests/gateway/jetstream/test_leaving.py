"""A member leaves a server that is cut off, and replaces a consumer that stopped."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest

from gateway.jetstream import connecting, reader, stream
from gateway.jetstream.connecting import JetStreamSettings
from tests.faults.cluster.machines import Servers
from tests.faults.cluster.proxy import FaultProxy
from tests.nats import NatsServer
from tests.still import PATIENCE
from tests.waiting import until

from .test_stream import StreamReader

LONG = 6 << 20  # bytes, more than sockets hold
T = TypeVar("T")


class LoopThread:
    """An event loop in a thread, for proxies."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of *call*, in the loop."""

        async def run() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def do(self, call: Callable[[], Any]) -> None:
        """Call *call* in the loop."""

        async def do() -> None:
            call()

        self.run(do)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# nats-py forgets a connection that comes just when it is given up; its socket is closed by the collector of garbage.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function StreamWriter.__del__:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.stop()
    gc.collect()


def port_of(member: StreamReader) -> int:
    return int(member.stream.status().server.rpartition(":")[2] or 0)


def counts(member: StreamReader, data: bytes) -> bool:
    return data in member.counted()


def leader_of(settings: JetStreamSettings) -> str:
    """The name of the server that leads the stream, which is made if there is none."""
    member = StreamReader(settings)
    try:
        until(lambda: member.stream.status().stored is not None)
        stored = member.stream.status().stored
        assert stored is not None
        return next(replica.name for replica in stored.replicas if replica.leads)
    finally:
        member.stream.stop()


def test_a_connection_that_hangs_is_left_while_much_is_unsent(
    tmp_path: Path, loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PING_SECONDS", 0.5)
    server = NatsServer(tmp_path)
    ways = {way.port: way for way in (FaultProxy(server.port), FaultProxy(server.port))}
    for way in ways.values():
        loop.run(way.start)
    member = StreamReader(JetStreamSettings("test", tuple(f"nats://127.0.0.1:{port}" for port in ways)))
    try:
        member.stream.submit(b"1")
        until(lambda: member.data == [b"1"])
        first = port_of(member)
        loop.do(ways[first].hang)
        long = [bytes([number]) * LONG for number in range(4)]
        for data in [*long, b"2"]:
            member.stream.submit(data)
        until(lambda: {*long, b"2"} <= {*member.data})
        until(lambda: port_of(member) not in (0, first))
    finally:
        member.stream.stop()
        for way in ways.values():
            loop.run(way.stop)
        server.stop()


@pytest.mark.parametrize("leads", [True, False])
def test_a_server_that_is_cut_off_from_the_others_is_left(
    tmp_path: Path, loop: LoopThread, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    """One that led the stream goes on answering about it: first as its leader, then about its own copy."""
    monkeypatch.setattr(stream, "SILENT_SECONDS", 3.0)
    monkeypatch.setattr(stream, "WATCH_SECONDS", 0.3)  # far less, or a server that is well is left as well
    monkeypatch.setattr(connecting, "sample", lambda urls, _count: list(urls))  # the first one is chosen
    servers = Servers(tmp_path)
    loop.run(servers.start)
    try:
        urls = {name: server.url for name, server in servers.servers.items()}
        leader = leader_of(JetStreamSettings("test", tuple(urls.values()), 3))
        names = sorted(urls, key=lambda name: (name == leader) != leads)
        first = servers.servers[names[0]].port
        member = StreamReader(JetStreamSettings("test", tuple(urls[name] for name in names), 3))
        try:
            for number in (b"1", b"2"):
                member.stream.submit(number)
                until(partial(counts, member, number))
            assert port_of(member) == first
            for way in servers.ways_of(names[0], gateways=False):
                loop.do(way.hang)
            for number in (b"3", b"4"):
                member.stream.submit(number)
                until(partial(counts, member, number))
            until(lambda: port_of(member) not in (0, first))
        finally:
            member.stream.stop()
    finally:
        loop.run(servers.stop)


def test_a_consumer_that_stops_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends heartbeats, and nothing else: here it is paused, in earnest it lost touch with the stream."""
    monkeypatch.setattr(reader, "STALLED_SECONDS", 0.5)
    monkeypatch.setattr(stream, "WATCH_SECONDS", 0.2)
    server = NatsServer(tmp_path)
    member = StreamReader(JetStreamSettings("test", (server.url,)))

    async def pause() -> None:
        client = await nats.connect(server.url)
        try:
            for consumer in await client.jsm().consumers_info("test"):
                until_when = json.dumps({"pause_until": "2200-01-01T00:00:00Z"}).encode()
                answer = await client.request(f"$JS.API.CONSUMER.PAUSE.test.{consumer.name}", until_when)
                assert json.loads(answer.data)["paused"]
        finally:
            await client.close()

    try:
        member.stream.submit(b"1")
        until(partial(counts, member, b"1"))
        asyncio.run(pause())
        for number in (b"2", b"3"):
            member.stream.submit(number)
        until(partial(counts, member, b"3"))
        assert (member.stream.status().reconnects, member.faults) == (0, [])
    finally:
        member.stream.stop()
        server.stop()


def test_a_permanently_closed_connection_is_a_fault(tmp_path: Path) -> None:
    """The client does not connect again: without a fault the gateway would wait for ever."""

    def configuration(password: str) -> str:
        return f'authorization {{ users: [ {{ user: ann, password: "{password}" }} ] }}\n'

    server = NatsServer(tmp_path, more=configuration("sesame"))
    member = StreamReader(JetStreamSettings("test", (server.url.replace("//", "//ann:sesame@"),)))
    try:
        member.stream.submit(b"1")
        until(partial(counts, member, b"1"))
        path = tmp_path / "nats.conf"
        path.write_text(path.read_text().replace("sesame", "another"))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: member.faults)
        assert member.faults == [member.stream.status().error]
        assert "the server refuses the credentials" in member.faults[0]
    finally:
        member.stream.stop()
        server.stop()


def test_a_task_that_loses_its_cancellation_does_not_go_on(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.wait_for` loses one that comes together with an answer."""
    begun, lost = threading.Event(), threading.Event()

    async def run(_: reader.EntryReader) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            lost.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(reader.EntryReader, "run", run)
    member = StreamReader(JetStreamSettings("test", (server.url,)))
    assert begun.wait(PATIENCE)
    member.stream.stop()
    assert lost.is_set()
    assert not member.stream._thread.is_alive()
