"""Two gateways of a cluster, one of which has the turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import runtime
from tests.gateway.cluster.turn_members import TurnMember, UnreliableNetwork
from tests.properties.cluster import ClusterInstance, Stream, copy_of, next_seq
from tests.properties.in_process_gateway import NOW, template
from tests.properties.parties import KINDS, Party
from tests.still import Clock


class Pair:
    """Two gateways, one of which has the turn."""

    def __init__(self, folder: Path) -> None:
        folders = [copy_of(template(), folder / name) for name in "ab"]
        stream = Stream(next_seq(folders[0]))
        self.nodes = [ClusterInstance(stream, folder) for folder in folders]
        self.beat()

    def beat(self) -> None:
        for node in self.nodes:
            node.membership.signalling.beat()
        self.settle()

    def settle(self) -> None:
        """Do everything that is due at both."""
        for _ in range(3):
            for node in self.nodes:
                node.transport.pump()
                node.instance.posted.drain()

    def enter(self, at: int, kind: str, channel: str = "lobby") -> Any:
        """A peer of *kind*, which joins *channel* at that gateway."""
        node = self.nodes[at]
        node.catch_up()
        party = KINDS[kind](node.instance)
        party.join(channel)
        self.settle()
        return party

    def heard(self, party: Party) -> bytes:
        """What *party* was sent since the last time."""
        self.settle()
        sent = b""
        for session in party.sessions:
            while data := session.data_to_send():
                sent += b"\n".join(data)
        return sent

    def numbers(self, at: int, channel: str = "lobby") -> list[int]:
        return [peer.number for peer in self.nodes[at].instance.gateway.bus.peers_in(channel)]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(runtime, "clock", Clock(NOW))
    pair = Pair(tmp_path)
    yield pair
    pair.stop()


@pytest.fixture
def world() -> UnreliableNetwork:
    """A network with two members that take turns."""
    world = UnreliableNetwork()
    world.members = [TurnMember(world, "a"), TurnMember(world, "b")]
    return world
