"""Charts as inline SVG. Only shapes are scaled; all text is HTML, so it is readable at any width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from .axes import Axis, format_time, plot, time_ticks, value_axis

# Each colour has its own lightness, so that they differ in greyscale and for colour-blind readers.
COLOURS: Final = {"sprout": "#2a6f3e", "streamr": "#d9822b", "topic_relay": "#3b6fb6", "rest": "#9b4f96"}
OTHER: Final = "#7a7a7a"
VERDICTS: Final = {"ok": "#2a6f3e", "bad": "#b3261e", "unverifiable": "#9aa0a6"}
_HEIGHT: Final = 100
_FEW: Final = 3  # columns that a narrow screen has room for


class Periods(NamedTuple):
    """The time that pictures show: from the period that starts at *begin* to the one at *end*, of *step* each (ms)."""

    begin: int
    end: int
    step: int

    @property
    def number(self) -> int:
        """The number of periods."""
        return self.place(self.end) + 1

    def place(self, time: int) -> int:
        """Return the number of the period of *time*, from 0."""
        return (time - self.begin) // self.step

    def plot(self, shapes: str, axis: Axis, label: str) -> str:
        """Write a picture with a unit of width for each period."""
        times = time_ticks(self.begin, self.end + self.step)
        return plot(shapes, self.number, _HEIGHT, axis, times, label)


def bars_over_time(rows: Sequence[tuple[int, str, int]], periods: Periods) -> str:
    """Draw stacked bars of (start of a period, protocol, n)."""
    if not rows:
        return placeholder("There are no messages yet.")
    sums: dict[int, int] = {}
    for time, _, n in rows:
        sums[time] = sums.get(time, 0) + n
    axis = value_axis(max(sums.values()), whole=True)
    drawn, height = [], dict.fromkeys(sums, 0.0)
    for time, protocol, n in rows:
        tall = n / axis.top * _HEIGHT
        height[time] += tall
        drawn.append(
            f'<rect x="{periods.place(time) + 0.08:.2f}" y="{_HEIGHT - height[time]:.3f}" width="0.84"'
            f' height="{tall:.3f}" fill="{colour(protocol)}">'
            f"<title>{format_time(time)} {escape(protocol)}: {n:,}</title></rect>"
        )
    picture = periods.plot("".join(drawn), axis, "messages over time")
    return f"<figure>{picture}</figure>{legend({row[1] for row in rows})}"


def lines_over_time(rows: Sequence[tuple[int, Sequence[float]]], periods: Periods, label: str) -> str:
    """Draw a line for each value of (start of a period, values); where a period is missing, the lines are broken."""
    axis = value_axis(max(max(values) for _, values in rows))
    paths = ["" for _ in rows[0][1]]
    for at, (time, values) in enumerate(rows):
        follows = at > 0 and periods.place(rows[at - 1][0]) == periods.place(time) - 1
        for n, value in enumerate(values):
            y = _HEIGHT * (1 - value / axis.top)
            paths[n] += f"V{y:.2f}h1" if follows else f"M{periods.place(time)},{y:.2f}h1"
    shapes = "".join(f'<path class="line{n}" d="{path}"/>' for n, path in enumerate(paths))
    return periods.plot(shapes, axis, label)


def legend(protocols: Iterable[str]) -> str:
    """Explain which colour is which protocol."""
    return key_of({name: colour(name) for name in sorted(protocols)})


def key_of(colours: Mapping[str, str]) -> str:
    """Explain which colour is what."""
    keys = "".join(f'<li><i style="background:{fill}"></i>{escape(name)}</li>' for name, fill in colours.items())
    return f'<ul class="legend">{keys}</ul>'


def bar(shares: Sequence[tuple[float, str]]) -> str:
    """Draw one bar over the whole width from parts (fraction of 1, colour)."""
    drawn, at = [], 0.0
    for share, fill in shares:
        drawn.append(f'<rect x="{at:.3f}" y="0" width="{share * 100:.3f}" height="1" fill="{fill}"/>')
        at += share * 100
    return f'<svg class="bar" aria-hidden="true" viewBox="0 0 100 1" preserveAspectRatio="none">{"".join(drawn)}</svg>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], name: str) -> str:
    """Write a table with the id *name*; a chart (`Raw`, last in a row) goes into the row's first cell."""
    listed = list(rows)
    if not listed:
        return placeholder("There is nothing to show yet.")
    kinds = [_kind(value) for value in listed[0]]
    many = ' class="many"' if len(head) > _FEW else ""
    heads = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for text, kind in zip(head, kinds, strict=False))
    body = "".join(f"<tr>{_cells(head, row)}</tr>" for row in listed)
    return (
        f'<div class="wide"><table id="{name}"{many}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cells(head: Sequence[str], row: Sequence[Any]) -> str:
    """Write the cells of *row*; each has the name of its column, which a narrow screen shows beside it."""
    picture = row[-1] if isinstance(row[-1], Raw) else ""
    first, *others = row[:-1] if picture else row
    cells = [f"<td{_kind(first)}>{_text(first)}{picture}</td>"]
    named = zip(head[1:], others, strict=True)
    return "".join(
        [*cells, *(f'<td{_kind(value)} data-name="{escape(name)}">{_text(value)}</td>' for name, value in named)]
    )


def _kind(value: Any) -> str:
    return ' class="n"' if value is None or isinstance(value, int | float) else ""


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
    return escape(visible(str(value)))


class Raw(str):
    """Text that is HTML already."""

    __slots__ = ()


def placeholder(text: str) -> str:
    """Write *text* in place of an empty chart or table."""
    return f'<p class="nothing">{escape(text)}</p>'


def colour(protocol: str) -> str:
    """Return the colour of *protocol*."""
    return COLOURS.get(protocol, OTHER)


def visible(text: str) -> str:
    """Escape control characters in *text*, which peers chose, and shorten it to 80 characters."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"
