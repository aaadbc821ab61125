"""The arithmetic of the report: medians, ratios, and how far the rounds are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from .workload import Round


@dataclass(frozen=True)
class Ratio:
    """How many times as much as the reference: of the medians; and the lowest and the highest of single rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Row:
    """The rounds of one contestant under one workload; every figure is a median."""

    workload: str
    contestant: str
    rounds: int
    per_cpu_second: float
    per_second: float
    server_us: float  # of CPU time, for an item
    load_busy: float  # share of a core that the load generator took
    p50_us: float
    p99_us: float
    p999_us: float
    delay_us: float
    ratio: Ratio | None  # of items for each CPU-second, to the reference; None if it is the reference, or there is none
    ratio_per_second: Ratio | None
    ratio_p50: Ratio | None


def rows(rounds: Sequence[Round], references: Mapping[str, str]) -> list[Row]:
    """Return a row for each workload and contestant, in the order in which they were measured first.

    *references* has for each workload the contestant that the others are compared with.
    """
    groups: dict[str, dict[str, list[Round]]] = {}
    for each in rounds:
        groups.setdefault(each.workload, {}).setdefault(each.contestant, []).append(each)
    return [
        _row(group, None if name == references.get(workload) else contest.get(references.get(workload, "")))
        for workload, contest in groups.items()
        for name, group in contest.items()
    ]


def _row(group: Sequence[Round], reference: Sequence[Round] | None) -> Row:
    def middle(value: Callable[[Round], float]) -> float:
        return median(value(each) for each in group)

    return Row(
        workload=group[0].workload,
        contestant=group[0].contestant,
        rounds=len(group),
        per_cpu_second=middle(lambda each: each.per_cpu_second),
        per_second=middle(lambda each: each.per_second),
        server_us=middle(lambda each: each.cpu_seconds / each.result.items * 1e6),
        load_busy=middle(lambda each: each.result.load_cpu_seconds / each.result.seconds),
        p50_us=middle(lambda each: each.result.p50_us),
        p99_us=middle(lambda each: each.result.p99_us),
        p999_us=middle(lambda each: each.result.p999_us),
        delay_us=middle(lambda each: each.result.delay_us),
        ratio=ratio(group, reference, lambda each: each.per_cpu_second),
        ratio_per_second=ratio(group, reference, lambda each: each.per_second),
        ratio_p50=ratio(group, reference, lambda each: each.result.p50_us),
    )


def ratio(group: Sequence[Round], reference: Sequence[Round] | None, value: Callable[[Round], float]) -> Ratio | None:
    """Return the ratio of the medians of *value*, and the spread of the ratios of rounds that stood side by side."""
    others = {each.number: value(each) for each in reference or ()}
    single = [value(each) / others[each.number] for each in group if others.get(each.number)]
    if not single or not all(others.values()):
        return None
    return Ratio(median(map(value, group)) / median(others.values()), min(single), max(single))
