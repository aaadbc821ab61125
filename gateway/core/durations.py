"""Durations as people write them: a number with a unit, such as `12h`."""

from __future__ import annotations

import re
from typing import Final

EXAMPLES: Final = "90s, 10m, 12h, 7d or 2w"
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}  # ms
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhdw])")


def milliseconds_of(text: str) -> int:
    """Return the ms that *text* means; raise `ValueError` if it is not a duration."""
    if (match := _DURATION.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a duration such as {EXAMPLES}")
    return int(match[1]) * _UNITS[match[2]]
