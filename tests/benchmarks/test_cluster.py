"""The benchmark of a cluster spreads its traffic over all gateways and reports figures beside their goals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.cluster import GOALS, INEXACT, accepting, compare, fanning, fans, report
from benchmarks.servers import BenchmarkServer, ServiceAddress
from benchmarks.workload import Bench

GATEWAYS = [
    BenchmarkServer(
        name,
        1,
        {"rest": ServiceAddress("rest", "127.0.0.1", port), "relay": ServiceAddress("relay", "127.0.0.1", port)},
    )
    for name, port in (("one", 1), ("two", 2), ("three", 3))
]


def test_publishers_are_spread_over_all_gateways() -> None:
    traffic, server = accepting(3, 64).at(GATEWAYS)
    assert [(group.count, server.addresses[group.service].port) for group in traffic.groups] == [
        (22, 1),
        (21, 2),
        (21, 3),
    ]
    alone, _ = accepting(3, 1).at(GATEWAYS)
    assert [group.count for group in alone.groups] == [1]


def test_one_publishes_to_listeners_at_each_gateway() -> None:
    traffic, server = fanning(3).at(GATEWAYS)
    found = [(group.role, group.count, server.addresses[group.service].port) for group in traffic.groups]
    assert found == [("publisher", 1, 1), ("listener", 100, 1), ("listener", 100, 2), ("listener", 100, 3)]


def test_deliveries_are_compared_at_the_same_rates_and_with_as_many_in_flight() -> None:
    alone, several = fans(1), fans(3)
    assert [*several] == [*alone] == ["200 a second", "800 a second", "64 in flight", "1 in flight"]
    assert [(each.rhythm, each.rate, each.window) for each in several.values()][:2] == [
        ("schedule", 200.0, 64),
        ("schedule", 800.0, 64),
    ]
    assert [each.window for each in several.values()][2:] == [64, 1]


def test_figures_are_shown_beside_their_goals() -> None:
    shown = report([{"accepted a second": 3_000.0, "load": 1.0}, {"accepted a second": 5_000.0, "load": 2.0}])
    assert shown.splitlines()[1].split() == ["accepted", "a", "second", "4,000", "3,000", "5,000", "4,000"]
    assert shown.splitlines()[2].split() == ["load", "1.5", "1", "2"]


@pytest.mark.skipif("TRELLIS_SOAK" not in os.environ, reason="takes a quarter of a minute; `make soak` runs it")
def test_the_benchmark_measures_every_goal(out: Path) -> None:
    (row,) = compare(Bench(out, rounds=1, seconds=0.3, warmup=0.1))
    assert GOALS.keys() <= row.keys()
    assert row.pop(INEXACT) == 0
    assert all(value > 0 for value in row.values())
