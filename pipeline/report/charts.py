"""Charts as inline SVG. Only shapes are scaled; all text is HTML, so it is readable at any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

# Each colour has its own lightness, so that they differ in greyscale and for colour-blind readers.
COLOURS: Final = {"sprout": "#2a6f3e", "streamr": "#d9822b", "topic_relay": "#3b6fb6", "rest": "#9b4f96"}
OTHER: Final = "#7a7a7a"
VERDICTS: Final = {"ok": "#2a6f3e", "bad": "#b3261e", "unverifiable": "#9aa0a6"}
_HEIGHT: Final = 100


def bars_over_time(rows: Sequence[tuple[int, str, int]], step_ms: int) -> str:
    """Draw stacked bars of (time in ms, protocol, n), with the maximum above and the times below."""
    if not rows:
        return placeholder("There are no messages yet.")
    first, last = min(row[0] for row in rows), max(row[0] for row in rows)
    sums: dict[int, int] = {}
    for time, _, n in rows:
        sums[time] = sums.get(time, 0) + n
    top = max(sums.values())
    drawn, height = [], dict.fromkeys(sums, 0.0)
    for time, protocol, n in rows:
        tall = n / top * _HEIGHT
        height[time] += tall
        at = (time - first) // step_ms
        drawn.append(
            f'<rect x="{at + 0.08:.2f}" y="{_HEIGHT - height[time]:.3f}" width="0.84" height="{tall:.3f}"'
            f' fill="{colour(protocol)}"><title>{format_time(time)} {escape(protocol)}: {n:,}</title></rect>'
        )
    count = (last - first) // step_ms + 1
    return (
        f'<figure><p class="most">{top:,} at most</p><svg class="time" role="img" aria-label="messages over time"'
        f' viewBox="0 0 {count} {_HEIGHT}" preserveAspectRatio="none">{"".join(drawn)}</svg>'
        f"<figcaption><span>{format_time(first)}</span>"
        f"<span>{format_time(last + step_ms)} UTC</span></figcaption></figure>"
        f"{legend({row[1] for row in rows})}"
    )


def legend(protocols: Iterable[str]) -> str:
    """Explain which colour is which protocol."""
    keys = "".join(f'<li><i style="background:{colour(name)}"></i>{escape(name)}</li>' for name in sorted(protocols))
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
    told = list(rows)
    if not told:
        return placeholder("There is nothing to show yet.")
    kinds = [_kind(value) for value in told[0]]
    heads = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for text, kind in zip(head, kinds, strict=False))
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in told)
    return f'<div class="wide"><table id="{name}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(row: Sequence[Any]) -> str:
    picture = row[-1] if isinstance(row[-1], Raw) else ""
    first, *others = row[:-1] if picture else row
    told = [f"<td{_kind(first)}>{_text(first)}{picture}</td>"]
    return "".join([*told, *(f"<td{_kind(value)}>{_text(value)}</td>" for value in others)])


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
    return escape(_visible(str(value)))


class Raw(str):
    """Text that is HTML already."""

    __slots__ = ()


def placeholder(text: str) -> str:
    """Write *text* in place of an empty chart or table."""
    return f'<p class="nothing">{escape(text)}</p>'


def colour(protocol: str) -> str:
    """Return the colour of *protocol*."""
    return COLOURS.get(protocol, OTHER)


def format_time(time: int | None) -> str:
    """Format a time (ms) as date and minute in UTC; `-` for None."""
    return "-" if time is None else datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _visible(text: str) -> str:
    """Escape control characters in *text*, which peers chose, and shorten it to 80 characters."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"
