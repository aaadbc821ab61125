"""A clock ahead of all others does not move the time of the cluster's log beyond theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.cluster.agreed_clock import MAX_AHEAD, AgreedClock
from gateway.cluster.roster import MEMBER_SILENCE_SECONDS, MemberRoster
from gateway.cluster.signals import Heartbeat, decode_signal, encode_signal
from tests.server import Server
from tests.waiting import until

from .test_cluster import Cluster, told

DAY = 86_400_000  # ms


class ClockSignals:
    """A clock, and what others say."""

    def __init__(self) -> None:
        self.own = 1_000_000
        self.others: list[int] = []
        self.asked = 0
        self.clock = AgreedClock(lambda: self.own, self.ask)

    def ask(self) -> list[int]:
        self.asked += 1
        return self.others


def test_a_clock_is_trusted_without_other_members() -> None:
    world = ClockSignals()
    assert (world.clock.now(), world.clock.refresh()) == (1_000_000, 0)
    world.own += DAY
    assert world.clock.now() == 1_000_000 + DAY


@pytest.mark.parametrize("others", [[0], [DAY - 5], [1_000_000, 1_000_200], [0, 10 * DAY]])
def test_a_wrong_clock_of_one_other_member_changes_nothing(others: list[int]) -> None:
    world = ClockSignals()
    world.others = [1_000_100, *others]
    assert world.clock.now() == 1_000_000


def test_a_clock_ahead_of_all_others_is_not_trusted() -> None:
    world = ClockSignals()
    world.others = [999_000, 1_000_000]
    world.own = 1_000_000 + MAX_AHEAD
    assert (world.clock.now(), world.clock.ahead) == (world.own, 0)
    world.own += 1
    assert (world.clock.now(), world.clock.ahead) == (1_000_000, MAX_AHEAD + 1)
    world.own += DAY
    world.others = [1_000_500]
    assert world.clock.now() == 1_000_500, "the others' time goes on"
    world.own = 1_000_600
    assert (world.clock.now(), world.clock.refresh()) == (1_000_600, 0)


def test_a_clock_that_is_right_asks_rarely() -> None:
    world = ClockSignals()
    world.others = [world.own]
    for world.own in range(1_000_000, 1_001_000):
        world.clock.now()
    assert world.asked == 1
    world.others = [5_000_000]  # another clock is wrong for a moment
    world.clock.refresh()
    world.others = [1_001_000]
    world.clock.refresh()
    world.own = 4_000_000
    assert world.clock.now() == 1_001_000


def test_heartbeats_carry_the_time_of_their_member() -> None:
    now = 100.0
    roster = MemberRoster(lambda: now)
    for name, clock in (("one@1", 5_000), ("two@1", 0)):
        found = decode_signal(encode_signal(Heartbeat(name, "1", 1, 1, clock=clock)))
        assert isinstance(found, Heartbeat)
        roster.hear(found)
    now += 1.5
    assert roster.times() == [6_500]
    now += MEMBER_SILENCE_SECONDS
    assert roster.times() == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def tomorrow() -> int:
    return time.time_ns() // 1_000_000 + DAY


def accepted(gateway: Server) -> tuple[str, float]:
    """Publish a message; its id, and by how many ms its time is ahead."""
    url = f"http://{gateway.http}/v1/channels/lobby/messages"
    message = httpx.post(url, json="a message", timeout=60).raise_for_status().json()
    return message["id"], message["timestamp"] - time.time() * 1000


def test_a_member_with_a_clock_a_day_ahead_uses_the_time_of_the_others(cluster: Cluster) -> None:
    one = cluster.start("one")
    accepted(one)
    other = cluster.start("two", keys_of="one", constants={"gateway.runtime.clock": tomorrow})
    assert accepted(other)[1] < DAY / 2, "the server told the time with the turn"
    until(lambda: len(told(other)["members"]) == len(told(one)["members"]) == 2)
    for gateway in (other, one, other):
        id, ahead = accepted(gateway)
        assert ahead < DAY / 2
        assert int(id[:8] + id[9:13], 16) - time.time() * 1000 < DAY / 2
    until(lambda: "is not believed" in other.log)
