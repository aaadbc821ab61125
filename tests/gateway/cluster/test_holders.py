"""Each link is held by one gateway of a cluster, and another one resumes it when that is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from adapters.streamr.sessions.link_cursors import Cursor, LinkCursors
from gateway.cluster.holders import CUT_OFF_SECONDS, HEARD_SECONDS, LISTEN_SECONDS
from gateway.cluster.roster import MEMBER_SILENCE_SECONDS
from gateway.cluster.signalling import Signalling
from gateway.cluster.signals import Heartbeat
from tests.gateway.cluster.test_cluster import Cluster, say, told
from tests.server import Server
from tests.waiting import until

LINKS = ("streamr ws://a", "topic_relay ws://b", "sprout c:7777")


class LinkHolders:
    """Members whose signals may be lost; each names some links. `now` is the clock of all."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.members: dict[str, Signalling] = {}
        self.cut: set[str] = set()
        self.paused: set[str] = set()  # members that stand still: what their links do is noticed when they go on
        self.elects = False  # whether the servers of the stream have no leader
        self.heard: dict[str, float] = {}  # when the servers answered each of them

    def add(self, member: str) -> None:
        self.heard[member] = self.now
        self.members[member] = signalling = Signalling(
            *(_Carrier(self, member), lambda: self.now, lambda *_: None, lambda: Heartbeat(member, "1", 1, 1)),
            silence=lambda: self.now - self.heard[member],
        )
        signalling.holders.name(self.random.sample(LINKS, self.random.randint(1, 3)))

    def pass_second(self) -> None:
        self.now += 1
        for member in set() if self.elects else self.members.keys() - self.cut - self.paused:
            self.heard[member] = self.now
        self.check()
        for member in [*self.members]:
            if member in self.paused:
                continue
            self.members[member].beat()
            self.check()

    def check(self) -> None:
        """No link is held twice, also before a member that is back has heard the others, or they have heard it."""
        for link in LINKS:
            assert len(self.holders(link)) <= 1, (self.now, link)

    def holders(self, link: str) -> list[str]:
        """Who is connected now."""
        return [
            name
            for name, signalling in self.members.items()
            if name not in self.paused and link in signalling.holders.links and signalling.holders.may_hold(link)
        ]


class _Carrier:
    def __init__(self, world: LinkHolders, me: str) -> None:
        self.world, self.me = world, me

    def tell(self, data: bytes, to: str = "") -> None:
        for name, member in self.world.members.items():
            if to in ("", name) and name != self.me and not {self.me, name} & (self.world.cut | self.world.paused):
                member.hear(data)

    def later(self, _seconds: float, call: Any) -> None:
        call()


@pytest.mark.parametrize("seed", range(20))
def test_no_link_is_held_twice_and_each_is_held_again(seed: int) -> None:
    """Members come, are killed, are cut off from the servers and from all others, and come back."""
    random = Random(seed)
    world = LinkHolders(random)
    held = 0
    for second in range(300):
        what = random.random()
        if what < 0.05 and len(world.members) < 5:
            world.add(f"m{second}@{second}")
        elif what < 0.07 and world.members:
            world.members.pop(random.choice([*world.members]))
        elif what < 0.1 and world.members:
            world.cut.add(random.choice([*world.members]))
        elif what < 0.13 and world.members:
            world.paused.add(random.choice([*world.members]))
        elif what < 0.25:
            world.cut.clear()
            world.paused.clear()
        world.pass_second()
        held += sum(len(world.holders(link)) for link in LINKS)
    world.cut.clear()
    world.paused.clear()
    for _ in range(int(LISTEN_SECONDS + MEMBER_SILENCE_SECONDS) + 2):
        world.pass_second()
    named = {link for signalling in world.members.values() for link in signalling.holders.links}
    assert all(len(world.holders(link)) == 1 for link in named)
    assert held


def test_links_are_held_again_soon_after_the_servers_answer() -> None:
    world = LinkHolders(Random(1))
    world.add("m1@1")
    world.add("m2@2")
    for _ in range(int(LISTEN_SECONDS) + 1):
        world.pass_second()
    before = {link: world.holders(link) for link in LINKS}
    assert any(before.values())
    world.elects = True
    for _ in range(int(MEMBER_SILENCE_SECONDS) + 2):
        world.pass_second()
    assert not any(map(world.holders, LINKS))
    world.elects = False
    for _ in range(ceil(HEARD_SECONDS)):
        world.pass_second()
    assert {link: world.holders(link) for link in LINKS} == before


@pytest.mark.parametrize("fault", ["cut", "paused"])
def test_a_returning_member_waits_until_a_cut_off_holder_releases_the_link(fault: str) -> None:
    world = LinkHolders(Random(1))
    for member in ("m1@1", "m2@2"):
        world.add(member)
        world.members[member].holders.name(LINKS[:1])
    for _ in range(int(LISTEN_SECONDS) + 1):
        world.pass_second()
    setattr(world, fault, {"m2@2"})
    for _ in range(int(MEMBER_SILENCE_SECONDS) + 2):
        world.pass_second()
    assert world.holders(LINKS[0]) == ["m1@1"]
    world.cut, world.paused = {"m1@1"}, set()
    for _ in range(int(LISTEN_SECONDS) + 1):
        world.pass_second()
    assert world.holders(LINKS[0]) == ["m2@2"]


def test_a_holder_releases_a_link_before_others_acquire_it() -> None:
    assert CUT_OFF_SECONDS + 1 <= MEMBER_SILENCE_SECONDS < LISTEN_SECONDS, "members look once a second"


def test_a_received_cursor_only_advances_configured_links() -> None:
    cursors = LinkCursors({})
    cursors.keep_only(["ws://a"])
    for link, cursor in (("ws://a", [5, 7]), ("ws://a", [9, 3]), ("ws://b", [1, 1])):
        cursors.hear(json.dumps({"link": link, "cursor": cursor}).encode())
    assert (cursors.get("ws://a"), cursors.get("ws://b")) == (Cursor(9, 7), Cursor())
    for bad in (b"{}", b'{"link": "ws://a", "cursor": [-1, 2]}', b'{"link": "ws://a", "cursor": [1]}'):
        with pytest.raises(ValueError):  # noqa: PT011  # any of msgspec
            cursors.hear(bad)


QUICK = {
    "gateway.cluster.roster.MEMBER_SILENCE_SECONDS": 2.0,
    "gateway.cluster.holders.LISTEN_SECONDS": 2.5,
    "adapters.streamr.sessions.link.KEEP_MS": 200,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def test_another_gateway_takes_a_link_over_without_loss_or_repetition(cluster: Cluster, tmp_path: Path) -> None:
    with Server(tmp_path / "broker") as broker:
        peer = {"url": f"ws://{broker.http}/api/v1/ws", "channels": ["lobby"]}
        environment = {"TRELLIS_STREAMR__PEERS": json.dumps([peer])}

        def start(name: str, keys_of: str = "") -> Server:
            return cluster.start(name, keys_of, environment, QUICK)

        def holders() -> list[str]:
            found = {name: httpx.get(f"http://{each.http}/v1/stats").json()["links"] for name, each in alive.items()}
            return [name for name, (link,) in found.items() if link["state"] == "connected"]

        def heard(gateway: Server) -> Counter[str]:
            answer = httpx.get(f"http://{gateway.http}/v1/channels/lobby/messages", params={"limit": 256})
            found = answer.json()["messages"] if answer.status_code == 200 else []
            return Counter(each["content"]["content"] for each in found)

        def publish(gateway: Server, text: str) -> None:
            said.append(text)
            assert say(gateway, {"content": text})

        said = list[str]()
        alive = {"one": start("one")}
        alive["two"] = start("two", "one")
        until(lambda: holders() == ["one"])
        publish(alive["two"], "over the link of the other gateway")
        publish(broker, "from there")
        everybody = [broker, *alive.values()]
        until(lambda: all(heard(each) == Counter(said) for each in everybody))
        until(lambda: {each["holder"] for each in told(alive["two"])["links"]} == {"one"})
        shown = {name: httpx.get(f"http://{each.http}/metrics").text for name, each in alive.items()}
        assert 'trellis_links{protocol="streamr"} 1.0' in shown["one"]
        assert 'trellis_links{protocol="streamr"} 0.0' in shown["two"], "no alert is due where it is not held"
        alive.pop("one").kill()
        for number in range(5):
            publish(alive["two"], f"while nobody holds it {number}")
            publish(broker, f"there, while nobody holds it {number}")
        until(lambda: holders() == ["two"])
        everybody = [broker, alive["two"]]
        until(lambda: all(heard(each) == Counter(said) for each in everybody))
