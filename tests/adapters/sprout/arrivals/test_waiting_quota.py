"""All connections share one quota for waiting nodes, and each reports the memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapters.sprout.arrivals.arrivals import CROWDED
from adapters.sprout.arrivals.waiting import MAX_DEFERRED, MAX_TOTAL_BYTES, MAX_WAITING, WaitingNodes, WaitingQuota
from adapters.sprout.forest import forest
from adapters.sprout.store.direct_messages import DirectMessages
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import node_line

HEAP = 60_000  # characters that an orphan says


def id_of(line: str) -> str:
    return line.split(" ")[0]


@pytest.fixture
def lobby(place: Any, alice: Any, announce: Callable[..., str]) -> str:
    """A community of Alice's called lobby, which the gateway holds."""
    community: str = alice.community("lobby")
    announce(place.connect(), alice.identity, community)
    return community


def orphans(author: Any, lobby: str, count: int, text: str = "x" * HEAP) -> list[str]:
    """Replies to something that nobody has shown."""
    missing = author.reply(lobby, "never shown")
    return [author.reply(missing, f"{number} {text}") for number in range(count)]


def fill(place: Any, nodes: list[str]) -> Any:
    line = place.connect()
    for number, node in enumerate(nodes):
        line.send(f"announce {number} 1\n{node}\n")
    line.read()
    return line


def test_orphans_of_many_connections_share_one_quota(place: Any, lobby: str, alice: Any) -> None:
    nodes, room = orphans(alice, lobby, 30), place.adapter.parts.quota
    many = [fill(place, nodes) for _ in range(20)]
    assert MAX_TOTAL_BYTES // 2 < room.size <= MAX_TOTAL_BYTES
    assert room.size == sum(line.session._arrivals._waiting.size for line in many)
    for line in many:
        line.close()
    assert room.size == 0


def test_the_largest_holders_are_evicted_for_small_ones(place: Any, lobby: str, alice: Any) -> None:
    missing = alice.reply(lobby, "never shown")
    place.adapter.parts.quota._limit = 1 << 20
    greedy = fill(place, orphans(alice, lobby, 8))
    assert greedy.session.held_size > 1 << 19
    modest = place.connect()
    small = [alice.reply(missing, f"{number} {'x' * 9000}") for number in range(4)]
    for number, node in enumerate(small):
        assert "status" not in modest.ask(f"announce {number} 1\n{node}\n")
    assert greedy.session.held_size < 1 << 10, "it kept most, and keeps nothing"
    crowded_out = {text for text in greedy.ask("").splitlines() if text.startswith("status")}
    assert crowded_out >= {f"status {number} 4" for number in range(7)}, "it is told so"
    told = modest.ask(f"announce 9 1\n{missing}\n").splitlines()
    assert sorted(told) == [*(f"status {number} 0" for number in range(4)), "status 9 0"]
    assert all(place.store.seq(id_of(node)) is not None for node in small), "nothing of this was lost"
    assert place.gateway.metrics.counts["refused"]["sprout", CROWDED] >= 1


def test_the_largest_holder_is_refused(place: Any, lobby: str, alice: Any) -> None:
    place.adapter.parts.quota._limit = 1 << 20
    line = fill(place, orphans(alice, lobby, 8))
    (another,) = orphans(alice, lobby, 1, "y" * HEAP)
    assert line.ask(f"announce 77 1\n{another}\n").endswith("status 77 4\n")
    assert line.session.held_size <= 1 << 20


def test_deferred_ids_count_towards_the_quota() -> None:
    room = WaitingQuota(limit=1 << 20)
    waiting = WaitingNodes(room, lambda _ids: None)
    line = node_line("SHA512_B32__" + "A" * 43, b"x")
    taken = sum(waiting.add(f"missing {n}", line._replace(id=f"id {n}")) for n in range(MAX_WAITING + MAX_DEFERRED))
    assert taken < MAX_WAITING + MAX_DEFERRED
    assert 0 < room.size == waiting.size <= 1 << 20
    for number in range(MAX_WAITING + MAX_DEFERRED):
        waiting.pop(f"missing {number}")
        waiting.take_deferred(f"missing {number}")
    assert (room.size, len(waiting)) == (0, 0)


@pytest.mark.parametrize("half", ["x" * 50_000, "announce 1 2\nx" + "x" * 50_000])
def test_an_incomplete_message_is_reported(place: Any, half: str) -> None:
    line = place.connect()
    line.send(half)
    assert 50_000 <= line.session.held_size < 60_000


def test_waiting_nodes_of_a_long_announce_are_reported(place: Any, lobby: str, alice: Any) -> None:
    line, nodes = place.connect(), orphans(alice, lobby, 3)
    line.send("\n".join((f"announce 1 {len(nodes) + 1}", *nodes, "")))
    assert line.session.held_size >= 3 * HEAP


def test_an_unrequested_response_is_not_kept(place: Any, lobby: str, alice: Any) -> None:
    line = place.connect()
    line.send("version 0 0.0\n")
    for node in orphans(alice, lobby, 5):
        line.send(f"response 7 1024\n{node}\n")
    assert line.session.held_size < 1000
    assert line.send("version 1 0.0\n") == "status 1 0\n"


def test_subscriptions_are_reported(place: Any) -> None:
    line = place.connect()
    for number in range(100):
        line.send(f"subscribe {number} SHA512_B32__{number:043}\n")
    assert line.session.held_size >= 100 * 64


def test_a_direct_message_is_remembered_without_its_signature(alice: Any, lobby: str) -> None:
    directs = DirectMessages(lambda: 0)
    node = forest.decode(_raw(alice.reply(lobby, "x" * HEAP)))
    directs.add("id", node, 1)
    directs.forget("other", node)
    for id in ("id", "other"):
        found = directs.find(id)
        assert found is not None
        assert isinstance(found.node, forest.Reply)
        assert (found.node.signature, found.node.content.blob) == (b"", b"")


def _raw(line: str) -> bytes:
    return base64url.decode(line.split(" ")[1].encode())
