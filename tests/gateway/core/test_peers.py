from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gateway.core import peers as peers_module
from gateway.core.message import Peer
from gateway.core.peers import BLOCK, RESERVE, PeerRegistry

if TYPE_CHECKING:
    from tests.conftest import Core


class RecordedPeers:
    """The facts that peers write, and an index that lags behind them."""

    def __init__(self, first: int = 0) -> None:
        self.blocks: list[tuple[int, int]] = []
        self.recorded: list[Peer] = []
        self.indexed: list[Peer] = []
        self.peers = PeerRegistry(
            first, lambda first, count: self.blocks.append((first, count)), self.recorded.append, self.find, self.number
        )

    def find(self, protocol: str, identity: str) -> Peer | None:
        return next((peer for peer in self.indexed if (peer.protocol, peer.identity) == (protocol, identity)), None)

    def number(self, number: int) -> Peer | None:
        return next((peer for peer in self.indexed if peer.number == number), None)


def test_numbers_begin_at_0_and_are_unique() -> None:
    harness = RecordedPeers()
    numbers = [harness.peers.connection("toy").number for _ in range(3 * BLOCK)]
    assert numbers == list(range(3 * BLOCK))


def test_a_block_is_logged_well_before_it_is_used() -> None:
    harness = RecordedPeers()
    for number in range(2 * BLOCK):
        assert harness.peers.connection("toy").number == number
        first, count = harness.blocks[-1]
        assert first + count - number >= RESERVE
    assert harness.blocks[:2] == [(0, BLOCK), (BLOCK, BLOCK)]


def test_a_restart_begins_after_all_blocks(make_core: Callable[..., Core]) -> None:
    core = make_core()
    assert core.peers.connection("toy").number == 0
    assert make_core().peers.connection("toy").number == BLOCK
    assert make_core().peers.connection("toy").number == 2 * BLOCK


def test_an_identity_keeps_its_number(make_core: Callable[..., Core]) -> None:
    core = make_core()
    alice = core.peers.identity("toy", "alice", "Alice")
    assert core.peers.identity("toy", "alice") is alice
    assert core.peers.identity("other", "alice").number != alice.number
    again = make_core()
    assert again.peers.identity("toy", "alice") == alice == again.peers.find("toy", "alice")
    assert again.peers.with_number(alice.number) == alice
    assert again.peers.find("toy", "bob") is None
    assert again.peers.with_number(12345) is None


def test_a_new_name_replaces_the_old_and_no_name_does_not() -> None:
    harness = RecordedPeers()
    harness.peers.identity("toy", "alice")
    named = harness.peers.identity("toy", "alice", "Alice")
    assert harness.peers.identity("toy", "alice") == named == Peer(0, "toy", "alice", "Alice")
    assert harness.peers.identity("toy", "alice", "Alice") is named
    assert harness.recorded == [Peer(0, "toy", "alice"), named]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_KNOWN", 10)
    harness = RecordedPeers()
    for number in range(100):
        harness.indexed.append(harness.peers.identity("toy", str(number)))
    assert (len(harness.peers._durable), len(harness.peers._numbers)) == (10, 10)
    assert harness.peers.identity("toy", "0").number == 0
    assert harness.peers.with_number(1) == Peer(1, "toy", "1")
    assert len(harness.recorded) == 100


def test_the_numbers_of_another_gateway_are_never_allocated() -> None:
    harness = RecordedPeers()
    mine = {harness.peers.connection("toy").number for _ in range(BLOCK - RESERVE)}
    harness.peers.skip(2 * BLOCK)
    mine |= {harness.peers.connection("toy").number for _ in range(BLOCK)}
    assert harness.blocks == [(0, BLOCK), (2 * BLOCK, BLOCK)]
    assert len(mine) == 2 * BLOCK - RESERVE
    assert not mine & set(range(BLOCK, 2 * BLOCK))
