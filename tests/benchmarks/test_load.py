"""The load generator against a small relay that is honest, or has one fault: each fault must be noticed."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from benchmarks.generator import Load, LoadError, Result, Target, Workload, build

pytestmark = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler")

FAN = Workload("", "fan", peers=4, topics=1, window=8, must=1)
MESH = Workload("", "mesh", peers=6, topics=2, window=2, must=1)
PAIRS = Workload("", "pairs", peers=4, topics=2, window=1, must=1)
EVERY = 20  # how many deliveries go right between two that do not


class Relay:
    """As much of the topic relay as the generator uses; every so many deliveries it commits its *fault*."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
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
def relay(fault: str = "") -> Iterator[Target]:
    with serve(Relay(fault).handle, "127.0.0.1", 0, compression=None, process_request=refuse_elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Target("ws", "127.0.0.1", server.socket.getsockname()[1])
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("load"))


def run(binary: Path, target: Target, workload: Workload) -> Result:
    with Load(binary, target, workload, warmup=0.05, seconds=0.2) as load:
        return load.run()


@pytest.mark.parametrize("workload", [FAN, MESH, PAIRS], ids=lambda workload: workload.shape)
def test_an_honest_relay_is_exact(binary: Path, workload: Workload) -> None:
    listeners = {"fan": 4, "mesh": 2, "pairs": 1}[workload.shape]
    with relay() as target:
        result = run(binary, target, workload)
    assert result.exact
    assert result.deliveries == result.sent * listeners > 0
    assert 0 < result.p50_us <= result.p99_us


@pytest.mark.parametrize("fault", ["lost", "repeated", "stray"])
def test_a_fault_is_noticed(binary: Path, fault: str) -> None:
    with relay(fault) as target:
        result = run(binary, target, FAN)
    assert not result.exact
    assert getattr(result, fault) > 0


def test_a_server_that_is_not_there_is_said(binary: Path) -> None:
    with relay() as target:
        pass
    with pytest.raises(LoadError, match="cannot connect"), Load(binary, target, FAN, 0, 0):
        pass


def test_a_refused_upgrade_is_said(binary: Path) -> None:
    with (
        relay() as target,
        pytest.raises(LoadError, match="404 Not Found"),
        Load(binary, replace(target, path="/elsewhere"), FAN, 0, 0),
    ):
        pass


def test_the_generator_is_built_once(binary: Path) -> None:
    made = binary.stat().st_mtime_ns
    assert build(binary.parent) == binary
    assert binary.stat().st_mtime_ns == made
