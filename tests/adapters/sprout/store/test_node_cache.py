"""The cache of nodes keeps the most recently requested ones, within a bound."""

from __future__ import annotations

import pytest

from adapters.sprout.forest.forest import NO_PAIRS, Content, Identity, Reply
from adapters.sprout.store import node_cache
from adapters.sprout.store.node_cache import CachedNode, NodeCache


def reply(size: int) -> CachedNode:
    return CachedNode(Reply("", 1, 0, NO_PAIRS, "", "", "", Content(b"x" * (size - 300)), b"s" * 300))


def kept(nodes: NodeCache, count: int) -> list[int]:
    return [n for n in range(count) if nodes._held.get(str(n))]


def test_large_nodes_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "MAX_BYTES", 10_000)
    nodes = NodeCache()
    for n in range(20):
        nodes.add(str(n), reply(1000))
        nodes.get("3")
    assert kept(nodes, 20) == [3, *range(11, 20)]
    nodes.add("20", reply(9_500))
    assert kept(nodes, 21) == [20]
    nodes.add("21", CachedNode(Identity("", 0, 0, NO_PAIRS, "", Content(b"ada"), b"k" * 400, b"s" * 300)))
    assert kept(nodes, 22) == [21]


def test_a_node_added_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "MAX_BYTES", 10_000)
    nodes = NodeCache()
    for n in (0, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1):
        nodes.add(str(n), reply(2000))
    assert kept(nodes, 3) == [0, 1, 2]


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "MAX_CACHED", 3)
    nodes = NodeCache()
    for n in range(5):
        nodes.add(str(n), reply(300))
    assert kept(nodes, 5) == [2, 3, 4]
