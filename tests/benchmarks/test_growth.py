"""The benchmark of growth measures every figure, here with small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.growth import GrowthFigure, Sizes, measure, report
from benchmarks.workload import Bench


def test_each_figure_is_compared_with_that_of_the_smallest_size() -> None:
    rows = [
        GrowthFigure("a delivery; subscribers", 10, 2.0, load=3),
        GrowthFigure("what an index to make adds; records", 1_000, 0, 0),
        GrowthFigure("a delivery; subscribers", 100, 1.0, load=4),
        GrowthFigure("what an index to make adds; records", 200_000, 2e6, 4.0),
    ]
    assert report(rows).splitlines()[2:] == [
        "| a delivery | 10 subscribers | 2.0 us | 1.00 |  | 3 |",
        "| a delivery | 100 subscribers | 1.0 us | 0.50 |  | 4 |",
        "| what an index to make adds | 1,000 records | 0.0 us |  | 0.00 s | 0 |",
        "| what an index to make adds | 200,000 records | 2.00 s |  | 4.00 s, 100 k records a CPU-second | 0 |",
    ]


def test_the_benchmark_measures_every_figure(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "STARTS", 1)
    monkeypatch.setattr(growth, "ASKED", 8)
    rows = measure(Bench(out, rounds=1, seconds=0.1, warmup=0.05), Sizes((2, 4), (1, 3), (1_000,)))
    figures = {(row.what.partition(";")[0], row.size): row.cpu for row in rows}
    assert {what for what, size in figures if size == 1_000} == {
        "start, index in place",
        "what an index to make adds",
        "newest page",
        "page in the middle",
        "page from a time on",
        "message by its id",
    }
    assert [size for what, size in figures if what == "a delivery"] == [2, 4]
    assert [size for what, size in figures if what == "a message alone"] == [1, 3]
    assert all(cpu > 0 for (what, _), cpu in figures.items() if what != "what an index to make adds")
    assert not (out / "servers" / "records-1000").exists()
