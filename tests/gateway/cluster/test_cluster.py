"""Two genuine gateways and a genuine nats-server: one service."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from gateway.cluster_link import JetStreamLink
from gateway.jetstream.stream import JetStreamSettings
from gateway.membership import CannotJoin, Membership
from gateway.storage.layout import first_seqs, paths
from gateway.storage.log import Log
from gateway.storage.segments import Segments
from tests.nats import NatsServer
from tests.server import Server
from tests.waiting import until

SECONDS = 30


class Cluster:
    """Gateways by name, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nats = NatsServer(folder / "nats")
        self.gateways: dict[str, Server] = {}

    def environment(self, name: str) -> dict[str, str]:
        return {
            "TRELLIS_CLUSTER__URL": json.dumps([self.nats.url]),
            "TRELLIS_CLUSTER__GATEWAY": name,
            "TRELLIS_CLUSTER__REPLICAS": "1",
            "TRELLIS_CLUSTER__LEASE_SECONDS": "1",
        }

    def start(self, name: str, keys_of: str = "") -> Server:
        """Start a gateway, the first time with the keys of another one."""
        if keys_of:
            shutil.copytree(self.folder / keys_of / "keys", self.folder / name / "keys")
        self.gateways[name] = Server(self.folder / name, env=self.environment(name))
        return self.gateways[name]

    def stop(self) -> None:
        for gateway in self.gateways.values():
            if gateway.process.poll() is None:
                gateway.stop()
        self.nats.kill()

    def log(self, name: str) -> bytes:
        """The whole log of a gateway that has stopped."""
        folder = self.folder / name / "log"
        files = [next(filter(Path.exists, paths(folder, first))) for first in first_seqs(folder)]
        return b"".join(path.read_bytes() for path in files)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def say(gateway: Server, text: str) -> int:
    """Publish, again and again while the cluster does not answer; the sequence, 0 if the gateway is gone."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            with httpx.Client(timeout=SECONDS) as client:
                answer = client.post(f"http://{gateway.http}/v1/channels/lobby/messages", json=text)
        except httpx.TransportError:
            return 0
        if answer.status_code == 201:
            return int(answer.json()["sequence"])
        assert answer.status_code == 503, answer.text
        assert time.monotonic() < end
        time.sleep(0.05)


def history(gateway: Server) -> list[Any]:
    answer = httpx.get(f"http://{gateway.http}/v1/channels/lobby/messages", params={"limit": 256, "order": "asc"})
    return [each["content"] for each in answer.json()["messages"]] if answer.status_code == 200 else []


def test_two_gateways_are_one_service(cluster: Cluster) -> None:
    one = cluster.start("one")
    say(one, "first")
    other = cluster.start("two", keys_of="one")
    assert history(other) == ["first"], "it has caught up before it is ready"

    with connect(f"ws://{other.http}/relay") as relay:
        relay.send(json.dumps({"type": 2, "topic": "lobby"}))
        until(lambda: httpx.get(f"http://{other.http}/v1/channels/lobby/peers").json()["peers"])
        say(one, "heard elsewhere")
        while "heard elsewhere" not in str(relay.recv(SECONDS)):
            pass  # it is told who listens as well
        relay.send(json.dumps({"type": 6, "topic": "lobby", "content": "from the relay"}))
        until(lambda: {"content": "from the relay"} in history(one))

    accepted: list[str] = []

    def say_all(at: int) -> None:
        for number in range(12):
            text = f"message {at} {number}"
            if say((one, other)[at % 2], text):
                accepted.append(text)

    with ThreadPoolExecutor(8) as pool:  # all at once, at both, one of which is killed meanwhile
        done = [pool.submit(say_all, at) for at in range(8)]
        until(lambda: len(accepted) > 20)
        other.kill()
        for each in done:
            each.result()
    assert len(accepted) >= 4 * 12
    heard = history(one)
    assert not set(accepted) - set(map(str, heard)), "nothing that was accepted is lost"
    assert len(heard) == len(set(map(str, heard)))
    last = [say(one, f"while it is away {i}") for i in range(3)]
    other = cluster.start("two")
    assert history(other)[-3:] == [f"while it is away {i}" for i in range(3)]
    assert say(other, "back") > last[-1]

    cluster.nats.kill()
    cluster.nats.start()
    say(one, "after a restart of the server")
    until(lambda: history(other)[-1] == "after a restart of the server")
    cluster.stop()
    logs = cluster.log("one"), cluster.log("two")
    shorter = min(map(len, logs))
    assert logs[0][:shorter] == logs[1][:shorter]
    said = [line for log in logs for line in log.splitlines() if b"after a restart" in line]
    assert len(said) == 2, "what was accepted is in both"


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., Membership]]:
    """Joins a cluster, with a log of so many records."""
    nats = NatsServer(tmp_path / "nats")
    joined: list[Membership] = []

    def join(name: str, records: int = 0, about: str = "") -> Membership:
        folder = tmp_path / name / "log"
        folder.mkdir(parents=True, exist_ok=True)
        log = Log(Segments(folder), lambda _call: None, lambda: 5)
        log.start()
        for _ in range(records):
            log.fact("start", {"gateway": name, "version": "1"})
        log.close()
        settings = JetStreamSettings("main", (nats.url,), 1, about=about)
        joined.append(Membership(name, JetStreamLink(settings)))
        joined[-1].join(tmp_path / name)
        return joined[-1]

    yield join
    for membership in joined:
        membership.link.close()
    nats.kill()


def test_who_has_other_keys_is_refused(join: Callable[..., Membership]) -> None:
    assert join("one", about="keys 1").turn.acting
    with pytest.raises(CannotJoin, match="have 'keys 1' in common, and this gateway has 'keys 2': copy the folder"):
        join("two", about="keys 2")


def test_a_log_that_does_not_fit_the_stream_is_refused(join: Callable[..., Membership]) -> None:
    join("one", 3)
    with pytest.raises(CannotJoin, match="ends with record 0, and what the stream has begins with 4: copy the data"):
        join("two")
    with pytest.raises(CannotJoin, match="has record 4, and the stream ends with 3: the stream was lost"):
        join("three", 4)
