"""Numbers for people."""

from __future__ import annotations

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float) -> str:
    """Return *seconds* in its two largest units: `3 h 12 min`."""
    rest, parts = max(0, int(seconds)), list[str]()
    for size, unit in UNITS:
        if rest >= size or (not parts and size == 1):
            parts.append(f"{rest // size} {unit}")
            rest %= size
        elif parts:
            break
    return " ".join(parts[:2])


def rate(count: float | None) -> str:
    """Return so many a second; a dash where nothing is known yet."""
    return "-" if count is None else f"{count:,.1f}" if 0 < count < 100 else f"{count:,.0f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return *count* with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
