"""Three members of a cluster that are killed and stopped, and so is their server, while all of them publish.

It is part of `make soak`; the walks in `test_turn.py` do the same in memory, every day.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.gateway.cluster.test_cluster import Cluster

SEEDS = range(20) if "TRELLIS_SOAK" in os.environ else ()
ROUNDS = 10
NAMES = ("one", "two", "three")


class Publisher(threading.Thread):
    """Publishes at one member, whoever it is at the time; `accepted` are sequences and texts."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(daemon=True)
        self.cluster, self.member = cluster, name
        self.accepted: list[tuple[int, str]] = []
        self.stopping = False

    def run(self) -> None:
        number = 0
        while not self.stopping:
            number += 1
            text = f"{self.member} {number}"
            url = f"http://{self.cluster.gateways[self.member].http}/v1/channels/lobby/messages"
            try:
                answer = httpx.post(url, json=text, timeout=20)
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            if answer.status_code == 201:
                self.accepted.append((answer.json()["sequence"], text))
            else:
                time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def disturb(cluster: Cluster, random: Random) -> None:
    """One fault: a member is killed or stopped for a while, or the server is killed."""
    name, what = random.choice(NAMES), random.choice(("kill", "kill", "stop", "server"))
    pause = random.uniform(0, 4)
    if what == "kill":
        cluster.gateways[name].kill()
        time.sleep(pause)
        cluster.start(name)
    elif what == "stop":
        os.kill(cluster.gateways[name].pid, signal.SIGSTOP)
        time.sleep(pause)
        os.kill(cluster.gateways[name].pid, signal.SIGCONT)
    else:
        cluster.nats.kill()
        time.sleep(pause / 4)
        cluster.nats.start()
    time.sleep(random.uniform(0.5, 3))
    for each in NAMES:
        if cluster.gateways[each].process.poll() is not None:  # it lost its turn
            cluster.gateways[each].kill()
            cluster.start(each)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_was_accepted_is_lost(cluster: Cluster, seed: int) -> None:
    random = Random(seed)
    for name in NAMES:
        cluster.start(name, keys_of="" if name == "one" else "one")
    publishers = [Publisher(cluster, name) for name in NAMES * 2]
    for publisher in publishers:
        publisher.start()
    for _ in range(ROUNDS):
        disturb(cluster, random)
    time.sleep(3)
    for publisher in publishers:
        publisher.stopping = True
    for publisher in publishers:
        publisher.join()
    cluster.stop()
    logs = [cluster.log(name).splitlines() for name in NAMES]
    shortest = min(map(len, logs))
    assert all(log[:shortest] == logs[0][:shortest] for log in logs)
    longest = next(log for log in logs if len(log) == max(map(len, logs)))
    said = [(each["seq"], each["content"]) for each in map(json.loads, longest) if each["kind"] == "message"]
    accepted = {each for publisher in publishers for each in publisher.accepted}
    assert accepted
    assert not accepted - set(said)
