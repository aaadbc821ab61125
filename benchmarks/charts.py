"""Pictures of the report: bars as SVG, made of a few shapes, readable in light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 960, 420, 150  # of the picture; left and right of the bars
BAR, GAP, TOP = 14, 10, 34  # height of a bar; between groups; above the first one
COLOURS = ("#2a6f3e", "#8a8f98", "#d9822b", "#3b6fb6")
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
class Group:
    """The bars of one workload, below each other; *goal* is marked if there is one."""

    title: str
    bars: Sequence[Bar]
    goal: float | None = None


def bars(title: str, groups: Sequence[Group], *, at_one: bool = False, logarithmic: bool = False) -> str:
    """Draw *groups*; *at_one* adds a line at 1, where a contestant is as good as its reference."""
    names = list(dict.fromkeys(bar.name for group in groups for bar in group.bars))
    values = [bar.value for group in groups for bar in group.bars] + [group.goal or 0.0 for group in groups]
    scale = _Scale(min(value for value in values if value > 0), max(values), logarithmic=logarithmic)
    drawn, top = [_legend(names)], TOP
    for group in groups:
        drawn.append(_group(group, names, scale, top))
        top += BAR * len(group.bars) + GAP
    if at_one:
        drawn.append(
            f'<line class="line" x1="{scale(1):.1f}" x2="{scale(1):.1f}" y1="{TOP - 6}" y2="{top - GAP + 2}"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
        f' role="img" aria-label="{escape(title)}"><style>{STYLE}</style>{"".join(drawn)}</svg>\n'
    )


class _Scale:
    """Where a value lies, in the picture's units."""

    def __init__(self, low: float, high: float, *, logarithmic: bool) -> None:
        self._floor = math.floor(math.log10(low)) if logarithmic else 0.0
        self._logarithmic = logarithmic
        self._unit = (WIDTH - LEFT - RIGHT) / ((self._place(high) - self._floor) or 1.0)

    def _place(self, value: float) -> float:
        return math.log10(value) if self._logarithmic else value

    def __call__(self, value: float) -> float:
        return LEFT + (self._place(value) - self._floor) * self._unit if value > 0 else LEFT


def _legend(names: Sequence[str]) -> str:
    drawn, at = [], LEFT
    for number, name in enumerate(names):
        drawn.append(f'<rect x="{at}" y="6" width="10" height="10" fill="{_colour(number)}"/>')
        drawn.append(f'<text x="{at + 14}" y="15">{escape(name)}</text>')
        at += 30 + 7 * len(name)
    return "".join(drawn)


def _group(group: Group, names: Sequence[str], scale: _Scale, top: int) -> str:
    height = BAR * len(group.bars)
    drawn = [f'<text x="{LEFT - 8}" y="{top + height / 2 + 4:.1f}" text-anchor="end">{escape(group.title)}</text>']
    for number, bar in enumerate(group.bars):
        y, end = top + BAR * number, scale(bar.value)
        drawn.append(
            f'<rect x="{LEFT}" y="{y + 1}" width="{end - LEFT:.1f}" height="{BAR - 2}"'
            f' fill="{_colour(names.index(bar.name))}"/><text x="{end + 4:.1f}" y="{y + 11}">{escape(bar.text)}</text>'
        )
    if group.goal is not None:
        at = scale(group.goal)
        drawn.append(f'<line class="goal" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 2}" y2="{top + height + 2}"/>')
    return "".join(drawn)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
