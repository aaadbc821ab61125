"""Two genuine gateways and a genuine nats-server: one service."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gateway.access.keyfile import KEYS_FILE, KeyFile
from gateway.cli import app
from gateway.commands import cluster_remove
from gateway.storage.layout import first_seqs, paths
from tests.nats import NatsServer
from tests.server import Server
from tests.waiting import until

SECONDS = 30
IMPATIENT = {  # gateways that soon refuse what they cannot accept
    "gateway.cluster.accepting_turn.STALLED_SECONDS": 1.0,
    "gateway.membership.membership.STALLED_SECONDS": 1.0,
    "gateway.storage.log.UNCERTAIN_SECONDS": 0.5,
}


class Cluster:
    """Gateways by name, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nats = NatsServer(folder / "nats")
        self.gateways: dict[str, Server] = {}
        self.connections = ExitStack()

    def environment(self, name: str) -> dict[str, str]:
        return {
            "TRELLIS_CLUSTER__URL": json.dumps([self.nats.url]),
            "TRELLIS_CLUSTER__GATEWAY": name,
            "TRELLIS_CLUSTER__REPLICAS": "1",
            "TRELLIS_CLUSTER__LEASE_SECONDS": "1",
        }

    def start(
        self,
        name: str,
        keys_of: str = "",
        env: Mapping[str, str] | None = None,
        constants: Mapping[str, object] | None = None,
    ) -> Server:
        """Start a gateway, the first time with the keys of another one."""
        if keys_of:
            shutil.copytree(self.folder / keys_of / "keys", self.folder / name / "keys")
        self.gateways[name] = Server(
            self.folder / name, env={**self.environment(name), **(env or {})}, constants=constants
        )
        return self.gateways[name]

    def stop(self) -> None:
        self.connections.close()
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


def say(gateway: Server, text: object) -> int:
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


def told(gateway: Server) -> Any:
    """What it says of the cluster."""
    return httpx.get(f"http://{gateway.http}/v1/stats").json()["cluster"]


def metrics(gateway: Server) -> dict[str, float]:
    text = httpx.get(f"http://{gateway.http}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^trellis_cluster_(\w+) (\S+)$", text, re.MULTILINE)}


def knows(gateway: Server, secret: str) -> bool:
    """Whether a key counts there."""
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.get(f"http://{gateway.http}/v1/channels", headers=headers).status_code != 401


def peers(gateway: Server) -> list[int]:
    """Who is in the lobby."""
    answer = httpx.get(f"http://{gateway.http}/v1/channels/lobby/peers")
    assert answer.status_code == 200, answer.text
    return [peer["number"] for peer in answer.json()["peers"]]


def direct(gateway: Server, number: int) -> tuple[int, int]:
    """Send a direct message; the status, and to how many connections it was delivered."""
    url = f"http://{gateway.http}/v1/channels/lobby/peers/{number}/messages"
    answer = httpx.post(url, json="for one alone", timeout=SECONDS)
    return answer.status_code, answer.json().get("delivered", 0)


def check_keys(cluster: Cluster) -> None:
    """Keys that are made and removed on one gateway count on the other one, also on live connections."""
    one, other = cluster.gateways["one"], cluster.gateways["two"]
    keys = [KeyFile(gateway.data / "keys" / KEYS_FILE) for gateway in (one, other)]
    ann, ben = keys[0].add("ann"), keys[1].add("ben")  # as `trellis key add` does
    until(lambda: all(knows(gateway, secret) for gateway in (one, other) for secret in (ann, ben)))
    with connect(f"ws://{other.http}/relay", additional_headers={"Authorization": f"Bearer {ann}"}) as live:
        keys[0].remove("ann")
        with pytest.raises(ConnectionClosed, match="1008"):
            live.recv(SECONDS)
    assert not knows(other, ann)
    other.stop()
    keys[0].remove("ben")
    until(lambda: not knows(one, ben))
    assert not knows(cluster.start("two"), ben), "it was removed while the gateway was away"
    assert b'"hash"' not in cluster.log("one")


def check_an_outage(cluster: Cluster, one: Server, other: Server) -> None:
    """While the servers have no majority, what is published is refused, the rest goes on, and a key can be revoked."""
    gateways = (one, other)
    keys = [KeyFile(gateway.data / "keys" / KEYS_FILE) for gateway in gateways]
    staying, *leaving = keys[0].add("staying"), keys[0].add("leaving 0"), keys[1].add("leaving 1")
    until(lambda: all(knows(gateway, secret) for gateway in gateways for secret in (staying, *leaving)))
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        live = [
            stack.enter_context(
                connect(f"ws://{gateway.http}/relay", additional_headers={"Authorization": f"Bearer {secret}"})
            )
            for gateway, secret in zip(gateways, leaving, strict=True)
        ]
        client = stack.enter_context(
            httpx.Client(headers={"Authorization": f"Bearer {staying}"}, timeout=httpx.Timeout(SECONDS))
        )
        urls = [f"http://{gateway.http}/v1/channels/lobby/messages" for gateway in gateways]
        before = client.get(urls[0]).json()["messages"]
        cluster.nats.kill()
        statuses = pool.map(lambda url: client.post(url, json="perhaps").status_code, urls)
        assert list(statuses) == [503, 503], "the one whose turn it is, and the other one"
        for at, gateway in enumerate(gateways):
            until(lambda gateway=gateway: not is_ready(gateway))  # type: ignore[misc]
            assert client.get(urls[at]).json()["messages"][: len(before)] == before
            keys[at].remove(f"leaving {at}")
            with pytest.raises(ConnectionClosed, match="1008"):
                live[at].recv(SECONDS)
        cluster.nats.start()
        until(lambda: all(map(is_ready, gateways)))
        until(lambda: client.post(urls[1], json="after the outage").status_code == 201)
    keys[0].remove("staying")
    until(lambda: not any(knows(gateway, staying) for gateway in gateways))


def is_ready(gateway: Server) -> bool:
    """Whether it says so; else it says why."""
    answer = httpx.get(f"http://{gateway.http}/readyz")
    assert answer.status_code == 200 or "the cluster " in answer.text, answer.text
    return answer.status_code == 200


def test_two_gateways_are_one_service(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cluster.start("one", constants=IMPATIENT)
    say(one, "first")
    other = cluster.start("two", keys_of="one")
    assert history(other) == ["first"], "it has caught up before it is ready"
    check_peers(one, other)
    other = check_a_kill(cluster, one, other)
    check_reports(one)
    cluster.nats.kill()
    until(lambda: not told(one)["stream"]["connected"])
    cluster.nats.start()
    until(lambda: metrics(one)["reconnects_total"] >= 1)
    say(one, "after a restart of the server")
    until(lambda: history(other)[-1] == "after a restart of the server")
    check_an_outage(cluster, one, other)
    check_keys(cluster)
    check_removal(cluster, monkeypatch)
    cluster.stop()
    logs = cluster.log("one"), cluster.log("two")
    shorter = min(map(len, logs))
    assert logs[0][:shorter] == logs[1][:shorter]
    said = [line for log in logs for line in log.splitlines() if b"after a restart" in line]
    assert len(said) == 2, "what was accepted is in both"


def check_peers(one: Server, other: Server) -> None:
    """A peer at *other* hears, and is heard and seen, at *one* as well."""
    with connect(f"ws://{other.http}/relay") as relay:
        relay.send(json.dumps({"type": 2, "topic": "lobby"}))
        until(lambda: httpx.get(f"http://{other.http}/v1/channels/lobby/peers").json()["peers"])
        say(one, "heard elsewhere")
        while "heard elsewhere" not in str(relay.recv(SECONDS)):
            pass  # it is told who listens as well
        until(lambda: peers(one))
        number = peers(one)[0]
        assert [number] == peers(other), "who is present at one is present at all"
        assert direct(one, number) == (202, 1)
        while "for one alone" not in str(relay.recv(SECONDS)):
            pass
        assert direct(one, 1 << 41)[0] == direct(other, 1 << 41)[0] == 404
        relay.send(json.dumps({"type": 6, "topic": "lobby", "content": "from the relay"}))
        until(lambda: {"content": "from the relay"} in history(one))
    until(lambda: peers(one) == [])


def check_a_kill(cluster: Cluster, one: Server, other: Server) -> Server:
    """Kill *other* while both accept messages: none is lost or repeated, and it catches up once it is back."""
    staying = cluster.connections.enter_context(connect(f"ws://{other.http}/relay"))
    staying.send(json.dumps({"type": 2, "topic": "lobby"}))
    until(lambda: len(peers(one)) == 1)
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
    until(lambda: peers(one) == [])  # those of a gateway that is gone leave
    other = cluster.start("two", constants=IMPATIENT)
    assert history(other)[-3:] == [f"while it is away {i}" for i in range(3)]
    assert say(other, "back") > last[-1]
    return other


def check_reports(one: Server) -> None:
    """What *one* tells operators: statistics, metrics, and `trellis cluster status`."""
    until(lambda: len(told(one)["members"]) == 2 and told(one)["stream"]["last"])
    assert (told(one)["name"], told(one)["member"], told(one)["trouble"]) == ("main", "one", None)
    assert [each["name"] for each in told(one)["members"]] == ["one", "two"]
    until(lambda: metrics(one)["members"] == 2)
    assert metrics(one)["last_batch"] > 0
    shown = CliRunner(env={"TRELLIS_URL": one.http, "TRELLIS_KEY": None}).invoke(app, ["cluster", "status"])
    assert re.search(r"^state +takes part$", shown.output, re.MULTILINE), shown.output
    assert re.search(r"^two +\S+ +\d.* s ago +(yes|no) +\S+ +-$", shown.output, re.MULTILINE), shown.output


def check_removal(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateway two is removed once it does not run any more, and cannot start again."""
    remove, environment = ("cluster", "remove", "two"), cluster.environment("one")
    shown = CliRunner(env=environment).invoke(app, remove)
    assert "two is alive: stop it first" in str(shown.exception)
    cluster.gateways["two"].kill()
    monkeypatch.setattr(cluster_remove, "LISTEN_SECONDS", 0.1)
    assert CliRunner(env=environment).invoke(app, remove).exit_code == 0
    with pytest.raises(RuntimeError, match="this gateway was removed from the cluster"):
        cluster.start("two")
