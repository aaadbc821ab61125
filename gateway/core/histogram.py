"""Histograms: how many observations lie below each of some bounds, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Upper bounds. A call that takes a microsecond and a disk that hangs for ten seconds have cells of their own.
SECONDS = tuple(step * 10.0**power for power in range(-5, 2) for step in (1, 2.5, 5))
SIZES = tuple(float(1 << power) for power in range(0, 16, 1))


class Histogram:
    """Counts observations by *bounds*, which rise; one thread observes, and any thread may read."""

    __slots__ = ("bounds", "cells", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.cells = [0] * (len(bounds) + 1)  # the last one is for what is beyond all bounds
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count *value*."""
        self.cells[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """For each bound, the number of observations up to it; then the number of all."""
        return list(accumulate(self.cells))
