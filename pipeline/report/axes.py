"""Axes: round numbers and round times beside a picture, as HTML, which keeps its size whatever the picture's width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

MOST_TICKS: Final = 4  # steps of an axis: their labels fit on a telephone
_MINUTE, _DAY = 60_000, 86_400_000  # ms
_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)
ROUND_TIMES: Final[tuple[int, ...]] = (  # ms; the longest is longer than the time that a date can have
    *(minutes * _MINUTE for minutes in _MINUTES),
    *(days * 10**power * _DAY for power in range(8) for days in (1, 2, 5)),
)
_UNITS: Final = ((1440, "day"), (60, "hour"), (1, "minute"))  # minutes
_EDGE: Final = 0.1  # of the width: labels nearer to an end are not centred on their ticks


class Tick(NamedTuple):
    """A mark on an axis, at a part of its length (0 to 1)."""

    at: float
    text: str


class Axis(NamedTuple):
    """An axis from 0 to *top*."""

    top: float
    ticks: list[Tick]


def value_axis(most: float, *, whole: bool = False) -> Axis:
    """Divide an axis from 0 to at least *most* into round steps, of *whole* numbers if the values are."""
    least = max(most, 1 if whole else 1e-3) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= least * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    steps = max(1, math.ceil(most / step - 1e-9))
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return Axis(steps * step, [Tick(n / steps, f"{n * step:,.{digits}f}") for n in range(steps + 1)])


def time_ticks(begin: int, end: int) -> list[Tick]:
    """Return at most `MOST_TICKS` round times (UTC) from *begin* to *end* (ms), named by what changes."""
    length = max(1, end - begin)
    step = next(step for step in ROUND_TIMES if length / step <= MOST_TICKS)
    times = range(-(-begin // step) * step, end + 1, step)[:MOST_TICKS]
    return [Tick((time - begin) / length, _short(time, before)) for before, time in pairwise((begin, *times))]


def round_period(begin: int, end: int, most: int) -> int:
    """Return the shortest of `ROUND_TIMES` of which *most* have all times from *begin* to *end* (ms)."""
    return next(step for step in ROUND_TIMES if end // step - begin // step < most)


def period_name(minutes: int) -> str:
    """Name a period of *minutes*, one of `ROUND_TIMES`, as it follows "each"."""
    size, unit = next((size, unit) for size, unit in _UNITS if minutes % size == 0)
    return unit if minutes == size else f"period of {minutes // size:,} {unit}s"


def _short(time: int, before: int) -> str:
    """Format the time of a tick in five characters: what has changed since *before*, so that labels do not meet."""
    if time % _DAY:
        return format_time(time, "%H:%M")
    year = format_time(time, "%Y")
    return format_time(time, "%m-%d") if format_time(before, "%Y") == year else year


def format_time(time: int, pattern: str = "%Y-%m-%d %H:%M") -> str:
    """Format a time (ms) in UTC."""
    return datetime.fromtimestamp(time / 1000, UTC).strftime(pattern)


def plot(shapes: str, columns: int, height: float, axis: Axis, times: Sequence[Tick], label: str) -> str:
    """Write a picture of *shapes*, which has *columns* units of width and *height* units of height, with its axes."""
    lines = [(0.0, float(columns), height * (1 - tick.at), height * (1 - tick.at)) for tick in axis.ticks]
    lines += [(columns * tick.at, columns * tick.at, 0.0, height) for tick in times]
    grid = "".join(f'<line x1="{x:.3f}" x2="{to:.3f}" y1="{y:.3f}" y2="{down:.3f}"/>' for x, to, y, down in lines)
    wide = max(len(tick.text) for tick in axis.ticks)
    values = "".join(f'<span style="bottom:{tick.at:.1%}">{tick.text}</span>' for tick in axis.ticks)
    below = "".join(f'<span class="{_side(tick.at)}" style="left:{tick.at:.1%}">{tick.text}</span>' for tick in times)
    return (
        f'<div class="plot"><div class="y" style="width:{wide}ch">{values}</div>'
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {columns} {height:g}" preserveAspectRatio="none">'
        f'<g class="grid">{grid}</g>{shapes}</svg><div class="x">{below}</div></div>'
    )


def _side(at: float) -> str:
    return "first" if at < _EDGE else "last" if at > 1 - _EDGE else "inner"
