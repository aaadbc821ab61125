"""The share of the loop's time that long answers together take: more of it while the loop is idle.

Answers are made in slices, so a message that comes in the middle of one waits for the rest. While answers take 15 % of
the time, most messages wait for none. With a fifth, readers could move the median (decision 36). A loop that
waits for a core counts as idle.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

BUSY_SHARE = 0.05  # of the loop's time, while other work takes all of it
IDLE_SHARE = 0.15  # while there is no other work
WINDOW_SECONDS = 0.1  # at least, over which the other work is measured
LONG_SECONDS = 1.0  # a longer window says nothing about the present


class LoopShare:
    """The present share, by a clock in *seconds* and one of the loop thread's CPU time, in seconds as well."""

    def __init__(self, seconds: Callable[[], float], cpu_seconds: Callable[[], float] = thread_time) -> None:
        self._seconds = seconds
        self._cpu_seconds = cpu_seconds
        self._share = BUSY_SHARE
        self._used = 0.0  # by answers, in this window
        self._since: float | None = None  # when the window began
        self._cpu_since = 0.0

    def price(self, used: float) -> float:
        """Note that answers *used* so many seconds of the loop; return how many that are of `BUSY_SHARE`."""
        self._used += used
        now = self._seconds()
        if self._since is None or now - self._since >= WINDOW_SECONDS:
            self._measure(now, self._cpu_seconds())
        return used * (BUSY_SHARE / self._share)

    def _measure(self, now: float, cpu: float) -> None:
        self._share = BUSY_SHARE
        if self._since is not None and now - self._since <= LONG_SECONDS:
            busy = (cpu - self._cpu_since - self._used) / (now - self._since)
            self._share = BUSY_SHARE + (IDLE_SHARE - BUSY_SHARE) * min(1.0, max(0.0, 1.0 - busy))
        self._since, self._cpu_since, self._used = now, cpu, 0.0
