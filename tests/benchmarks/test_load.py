"""The load generator detects each fault of a small relay, and none of an honest one."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from benchmarks import generator
from benchmarks.generator import Group, Traffic, build
from benchmarks.servers import BenchmarkServer, ServiceAddress
from benchmarks.workload import Bench, LoadError, Result

FAN = Traffic((Group("publisher", 1, "relay"), Group("listener", 4, "relay")), window=8)
MESH = Traffic((Group("member", 3, "relay"),), topics=2, window=2)
PAIRS = Traffic((Group("pair", 2, "relay"),), topics=2)
SHAPES = {"fan": (FAN, 4), "mesh": (MESH, 2), "pairs": (PAIRS, 1)}
EVERY = 20  # how many deliveries go right between two that do not
STALL_SECONDS = 0.12


class FaultyRelay:
    """As much of the topic relay as the generator uses; every so many deliveries it commits its *fault*."""

    def __init__(self, fault: str, pause: Callable[[], object]) -> None:
        self.fault = fault
        self.pause = pause
        self.peers: dict[int, ServerConnection] = {}
        self.topics: dict[str, list[int]] = {}
        self.lock = threading.Lock()
        self.count = itertools.count(1)

    def handle(self, connection: ServerConnection) -> None:
        with self.lock:
            number = len(self.peers)
            self.peers[number] = connection
        for text in connection:
            with self.lock:
                self.take(number, json.loads(text))

    def take(self, number: int, packet: dict[str, Any]) -> None:
        members = self.topics.setdefault(packet["topic"], [])
        others = [member for member in members if member != number]
        if self.fault == "stall" and packet.get("n") == 1_000_000_020:
            self.pause()
        if packet["type"] == 2:
            self.say(others, {"type": 7, "topic": packet["topic"], "src": number})
            self.say([number], packet | {"peers": others})
            members.append(number)
        else:
            self.say([packet["dst"]] if packet["type"] == 4 else self.marred(others), packet | {"src": number})

    def marred(self, others: list[int]) -> list[int]:
        """The right audience, but for the fault; the generator's judge, who comes last, is spared."""
        if next(self.count) % EVERY:
            return others
        strangers = [number for number in self.peers if number not in others]
        return {"lost": others[1:], "repeated": [*others[:1], *others], "stray": [*others, *strangers]}.get(
            self.fault, others
        )

    def say(self, to: list[int], packet: dict[str, Any]) -> None:
        for member in to:
            self.peers[member].send(json.dumps(packet, separators=(",", ":")))


def refuse_elsewhere(connection: ServerConnection, request: Request) -> Response | None:
    return None if request.path == "/" else connection.respond(404, "")


@contextmanager
def relay(
    fault: str = "", pause: Callable[[], object] = lambda: time.sleep(STALL_SECONDS)
) -> Iterator[BenchmarkServer]:
    with serve(
        FaultyRelay(fault, pause).handle, "127.0.0.1", 0, compression=None, process_request=refuse_elsewhere
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield BenchmarkServer(
                "relay", 0, {"relay": ServiceAddress("relay", "127.0.0.1", server.socket.getsockname()[1])}
            )
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def bench(out: Path) -> Bench:
    return Bench(out, seconds=0.2, warmup=0.0)


def run(bench: Bench, server: BenchmarkServer, traffic: Traffic) -> Result:
    with traffic.open(server, bench) as go:
        return go()


@pytest.mark.parametrize("rhythm", ["judge", "first", "schedule"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_honest_relay_is_exact(bench: Bench, shape: str, rhythm: str) -> None:
    traffic, listeners = SHAPES[shape]
    with relay() as server:
        result = run(bench, server, replace(traffic, rhythm=rhythm, rate=500))
    assert result.exact
    assert result.items == result.sent * listeners > 0
    assert 0 < result.p50_us <= result.p99_us <= result.p999_us


def test_a_publisher_takes_its_time_for_each_message(bench: Bench) -> None:
    with relay() as server:
        result = run(bench, server, replace(FAN, rhythm="first", gap_us=4_000))
    assert result.exact
    assert 1 < result.sent <= 51, "however slow the machine is, no more"


@pytest.mark.parametrize("fault", ["lost", "repeated", "stray"])
def test_a_fault_is_noticed(bench: Bench, fault: str) -> None:
    with relay(fault) as server:
        result = run(bench, server, FAN)
    assert not result.exact
    assert getattr(result, fault) > 0


def test_a_schedule_counts_what_a_stall_delays(bench: Bench) -> None:
    """Most messages are due while the relay stands still; a publisher that waits has one message under way then."""
    with relay("stall") as server:
        result = run(bench, server, replace(FAN, rhythm="schedule", rate=300))
    assert (result.sent, result.exact) == (60, True)
    assert result.p50_us > 1_000
    assert result.p99_us > 0.8 * STALL_SECONDS * 1e6


def stop_for_a_moment() -> None:
    (generator,) = [child for child in psutil.Process().children() if child.name() == "load"]
    generator.suspend()
    time.sleep(0.5)
    generator.resume()


def test_a_schedule_counts_its_own_delay(bench: Bench) -> None:
    """A generator that stood still, here until the end, sends all that was due, and counts from when it was due."""
    traffic, longer = replace(FAN, rhythm="schedule", rate=300), replace(bench, seconds=0.5)
    with relay("stall", stop_for_a_moment) as server, traffic.open(server, longer) as go:
        result = go()
    assert (result.sent, result.exact) == (150, True)
    assert min(result.p99_us, result.delay_us) > 0.2e6


def test_an_unreachable_server_raises_load_error(bench: Bench) -> None:
    with relay() as server:
        pass
    with pytest.raises(LoadError, match="cannot connect"), FAN.open(server, bench):
        pass


def test_a_generator_that_waits_for_ever_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = ServiceAddress("relay", "127.0.0.1", silent.getsockname()[1], "/relay")
        with pytest.raises(LoadError, match="did not end"), FAN.open(BenchmarkServer("", 0, {"relay": at}), bench):
            pass


def test_a_refused_upgrade_raises_load_error(bench: Bench) -> None:
    with relay() as server:
        elsewhere = replace(server.addresses["relay"], path="/elsewhere")
        with (
            pytest.raises(LoadError, match="404 Not Found"),
            FAN.open(BenchmarkServer("", 0, {"relay": elsewhere}), bench),
        ):
            pass


def test_the_generator_is_built_once(bench: Bench) -> None:
    binary = build(bench.folder)
    made = binary.stat().st_mtime_ns
    assert build(bench.folder) == binary
    assert binary.stat().st_mtime_ns == made
