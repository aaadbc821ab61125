"""The arithmetic of the report, its turns and its pictures."""

from __future__ import annotations

import os
import time
from xml.etree import ElementTree

import pytest

from benchmarks import charts
from benchmarks.catalogue import WORKLOADS
from benchmarks.figures import Ratio, rows
from benchmarks.page import number, table
from benchmarks.rounds import contestants, cpu_seconds, in_turn
from benchmarks.workload import Result, Round


def a_round(contestant: str, items: int, number: int = 0, p50: float = 100.0) -> Round:
    return Round("fan10", contestant, number, 1.0, Result(items, seconds=2.0, load_cpu_seconds=0.5, p50_us=p50))


def test_ratios_are_of_medians_with_the_spread_of_neighbouring_rounds() -> None:
    node = [a_round("node", items, number) for number, items in enumerate((100, 200, 400))]
    ours = [a_round("trellis", items, number, p50=50.0) for number, items in enumerate((400, 400, 1200))]
    first, second = rows([*ours, *node], {"fan10": "node"})
    assert (first.contestant, first.rounds, first.per_cpu_second, first.per_second) == ("trellis", 3, 400, 200)
    assert first.ratio == Ratio(2.0, 2.0, 4.0)
    assert first.ratio_p50 == Ratio(0.5, 0.5, 0.5)
    assert (first.server_us, first.load_busy) == (2500.0, 0.25)
    assert (second.contestant, second.ratio) == ("node", None)


def test_a_round_that_broke_off_has_no_ratio() -> None:
    row, _ = rows([a_round("trellis", 400, 1), a_round("node", 100, 0), a_round("node", 300, 1)], {"fan10": "node"})
    assert row.ratio == Ratio(2.0, 400 / 300, 400 / 300)


def test_no_ratio_without_the_reference() -> None:
    (row,) = rows([a_round("nats", 100)], {"fan10": "node"})
    assert (row.ratio, row.ratio_p50) == (None, None)
    (row,) = rows([a_round("trellis", 100)], {})
    assert row.ratio is None


def test_unmeasured_values_have_no_ratio() -> None:
    row, _ = rows([a_round("trellis", 100, p50=0.0), a_round("node", 100, p50=0.0)], {"fan10": "node"})
    assert row.ratio is not None
    assert row.ratio_p50 is None


def test_contestants_take_turns() -> None:
    assert [list(in_turn("AB", number)) for number in range(3)] == [["A", "B"], ["B", "A"], ["A", "B"]]


def test_each_workload_has_at_most_one_reference_and_distinct_names() -> None:
    for workload in WORKLOADS.values():
        found = contestants(workload)
        assert len({entrant.name for entrant in found}) == len(found)
        references = [entrant for entrant in found if entrant.is_reference]
        assert len(references) == (len(found) > 1)
        assert workload.must is None or references


def test_cpu_time_is_of_the_whole_process() -> None:
    before = time.process_time()
    assert before <= cpu_seconds(os.getpid())


@pytest.mark.parametrize(
    ("value", "text"), [(0.4567, "0.46"), (789.4, "789"), (1234, "1.23 k"), (45_600, "45.6 k"), (999_600, "1.00 M")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "|---|---|", "| 1 | 2 |"]


def drawn(text: str) -> list[ElementTree.Element]:
    """The bars of a picture."""
    picture = ElementTree.fromstring(text)
    return [each for each in picture.iter() if each.tag.endswith("rect") and each.get("height") == "12"]


def ends(bar: ElementTree.Element) -> tuple[float, float]:
    left = float(bar.get("x", ""))
    return left, left + float(bar.get("width", ""))


def test_bars_of_ratios_begin_at_one() -> None:
    groups = [
        charts.BarGroup("one & two", [charts.Bar("trellis", 0.5, "0.5"), charts.Bar("nats", 8.0, "8.0")], 4.0),
        charts.BarGroup("three", [charts.Bar("trellis", 2.0, "2.0")]),
    ]
    text = charts.ratios("title", groups)
    half, eight, two = map(ends, drawn(text))
    assert half[1] == eight[0] == two[0]
    assert half[0] == pytest.approx(charts.LEFT)
    assert eight[1] == pytest.approx(charts.WIDTH - charts.RIGHT)
    assert two[1] - two[0] == pytest.approx(half[1] - half[0], abs=0.2)
    assert eight[1] - eight[0] == pytest.approx(3 * (half[1] - half[0]), abs=0.2)
    (goal,) = [each for each in ElementTree.fromstring(text).iter() if each.get("class") == "goal"]
    assert float(goal.get("x1", "")) == pytest.approx(half[1] + 2 * (half[1] - half[0]), abs=0.2)


def test_each_power_of_ten_has_the_same_width() -> None:
    bars = [charts.Bar(str(value), value, "") for value in (200.0, 2000.0, 20_000.0)]
    first, second, third = (ends(bar)[1] for bar in drawn(charts.magnitudes("title", [charts.BarGroup("all", bars)])))
    assert third - second == pytest.approx(second - first, abs=0.2)
    assert third == pytest.approx(charts.WIDTH - charts.RIGHT)
    assert first > charts.LEFT
