"""Every workload runs, for a moment and with fewer peers, against a real gateway, and all that it sends arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.sprout.forest import forest
from adapters.sprout.forest.node_rules import validate
from adapters.sprout.wire.codec import NodeLine
from benchmarks.bridge_load import Bridge
from benchmarks.catalogue import LEAVES, NEWEST, WORKLOADS
from benchmarks.generator import Group, Traffic
from benchmarks.mixed_load import Mixed
from benchmarks.rest_load import BulkLines
from benchmarks.servers import BenchmarkServer, trellis
from benchmarks.sprout_loads import Announce, Ask, AskPlanted, Bootstrap, FanOut
from benchmarks.sprout_nodes import trees
from benchmarks.streamr_load import SignedMessages
from benchmarks.workload import Bench, CountedLoad, Load

PEERS = 6  # of a group, at most
# The loads that are a fixed amount of work, with less of it, and how many items that is. The first asks for everything
# that the gateway holds, so nothing is held before; the planted ones ask about a community of `announce`.
SMALL: dict[str, tuple[CountedLoad, int]] = {
    "bootstrap": (Bootstrap(20), 31),
    "announce": (Announce(40), 40),
    "announce20": (Announce(40, 20), 40),
    "arbor50": (FanOut(20, 3), 60),
    "leaves": (Ask(1, LEAVES, 20), 20),
    "list": (Ask(1, NEWEST, 20), 20),
    "leaves500k": (AskPlanted(20, LEAVES), 20),
    "list500k": (AskPlanted(20, NEWEST), 20),
    "bridge": (Bridge(20, 1), 20),
    "bridge50": (Bridge(20, 3), 60),
    "lines": (BulkLines(1_000), 1_000),
    "mixed": (Mixed(1), 192),
}


@pytest.fixture(scope="module")
def bench(out: Path) -> Bench:
    return Bench(out, seconds=0.05, warmup=0.0)


@pytest.fixture(scope="module")
def gateway(bench: Bench) -> Iterator[BenchmarkServer]:
    with trellis(bench, "trellis") as server:
        yield server


def loads() -> dict[str, Load]:
    """What puts a load on the gateway: of each workload, and of what it is compared with."""
    beside = {f"{name}, beside": each.beside for name, each in WORKLOADS.items() if each.beside is not None}
    return {name: each.load for name, each in WORKLOADS.items()} | beside


def fewer(traffic: Traffic) -> Traffic:
    groups = tuple(Group(group.role, min(group.count, PEERS), group.service) for group in traffic.groups)
    prepared = None if traffic.prepared is None else SignedMessages(300)
    return replace(traffic, groups=groups, prepared=prepared, rate=min(traffic.rate, 500))


@pytest.mark.parametrize("name", SMALL)
def test_a_fixed_amount_of_work_is_done(name: str, gateway: BenchmarkServer, bench: Bench) -> None:
    load, items = SMALL[name]
    assert type(load) is type(loads()[name])
    load.renew(bench)
    with load.open(gateway, bench) as go:
        result = go()
    assert result.items == items
    assert result.seconds > 0


@pytest.mark.parametrize("name", [name for name, load in loads().items() if isinstance(load, Traffic)])
def test_traffic_arrives_exactly_once(name: str, gateway: BenchmarkServer, bench: Bench) -> None:
    load = loads()[name]
    assert isinstance(load, Traffic)
    traffic = fewer(load)
    assert traffic.runs_on(gateway)
    traffic.renew(bench)
    with traffic.open(gateway, bench) as go:
        result = go()
    assert result.exact, result
    assert result.items >= result.sent > 0
    assert 0 < result.p50_us <= result.p99_us <= result.p999_us


def test_every_workload_is_tried() -> None:
    assert {name for name, load in loads().items() if not isinstance(load, Traffic)} == SMALL.keys()


def node(line: NodeLine) -> forest.Node:
    return forest.decode_as(line.id, line.raw)


def test_the_nodes_that_are_announced_are_valid() -> None:
    first, second = trees(2, 3)
    assert first.identity == second.identity
    for tree in (first, second):
        held = {line.id: node(line) for line in (tree.identity, tree.community)}
        for line in (tree.identity, tree.community, *tree.replies):
            made = node(line)
            assert validate(made, line.raw, 0, held.get(made.author), held.get(made.parent)).ok
        assert len({line.id for line in tree.replies}) == 3
