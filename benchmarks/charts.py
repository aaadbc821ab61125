"""Pictures of the report: bars as SVG, made of a few shapes, readable in light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 960, 420, 170  # of the picture; left and right of the bars
BAR, GAP, TOP = 14, 10, 34  # height of a bar; between groups; above the first one
COLOURS = ("#2a6f3e", "#8a8f98", "#d9822b", "#3b6fb6", "#9b4f96", "#6b4f2a")
STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.line{stroke:#8a8f98;stroke-dasharray:3 3}"
    ".goal{stroke:#b3261e;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


@dataclass(frozen=True)
class Bar:
    """One bar: who it is of, how long it is, and what is written behind it."""

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class BarGroup:
    """The bars of one workload, below each other; *goal* is marked if there is one."""

    title: str
    bars: Sequence[Bar]
    goal: float | None = None


def ratios(title: str, groups: Sequence[BarGroup]) -> str:
    """Draw *groups* of ratios: bars begin at 1, and twice as much is as far to the right as half is to the left."""
    return _draw(title, groups, start=1.0)


def magnitudes(title: str, groups: Sequence[BarGroup]) -> str:
    """Draw *groups* of positive values; each power of ten has the same width, the least value is in the first one."""
    least = min(bar.value for group in groups for bar in group.bars)
    return _draw(title, groups, start=10.0 ** math.floor(math.log10(least)))


def _draw(title: str, groups: Sequence[BarGroup], start: float) -> str:
    names = list(dict.fromkeys(bar.name for group in groups for bar in group.bars))
    goals = [group.goal for group in groups if group.goal is not None]
    scale = _Scale([start, *goals, *(bar.value for group in groups for bar in group.bars)])
    drawn, top = [_legend(names)], TOP
    for group in groups:
        drawn.append(_group(group, names, scale, scale(start), top))
        top += BAR * len(group.bars) + GAP
    at = f"{scale(start):.1f}"
    drawn.append(f'<line class="line" x1="{at}" x2="{at}" y1="{TOP - 6}" y2="{top - GAP + 2}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
        f' role="img" aria-label="{escape(title)}"><style>{STYLE}</style>{"".join(drawn)}</svg>\n'
    )


class _Scale:
    """Where a value lies, in the picture's units: logarithmic, from the least of *values* to the greatest."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low = math.log10(min(values))
        self._unit = (WIDTH - LEFT - RIGHT) / ((math.log10(max(values)) - self._low) or 1.0)

    def __call__(self, value: float) -> float:
        return LEFT + (math.log10(value) - self._low) * self._unit


def _legend(names: Sequence[str]) -> str:
    drawn, at = [], LEFT
    for number, name in enumerate(names):
        drawn.append(f'<rect x="{at}" y="6" width="10" height="10" fill="{_colour(number)}"/>')
        drawn.append(f'<text x="{at + 14}" y="15">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    return "".join(drawn)


def _group(group: BarGroup, names: Sequence[str], scale: _Scale, start: float, top: int) -> str:
    height = BAR * len(group.bars)
    drawn = [f'<text x="{LEFT - 8}" y="{top + height / 2 + 4:.1f}" text-anchor="end">{escape(group.title)}</text>']
    for number, bar in enumerate(group.bars):
        y, end = top + BAR * number, scale(bar.value)
        drawn.append(
            f'<rect x="{min(start, end):.1f}" y="{y + 1}" width="{abs(end - start):.1f}" height="{BAR - 2}"'
            f' fill="{_colour(names.index(bar.name))}"/>'
            f'<text x="{WIDTH - RIGHT + 8}" y="{y + 11}">{escape(bar.text)}</text>'
        )
    if group.goal is not None:
        at = f"{scale(group.goal):.1f}"
        drawn.append(f'<line class="goal" x1="{at}" x2="{at}" y1="{top - 2}" y2="{top + height + 2}"/>')
    return "".join(drawn)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
