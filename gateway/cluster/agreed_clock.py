"""The time of day that a member gives to messages that it accepts: its own, unless the others disagree.

What one member accepts moves the time of the log on for all, and it never goes back. So a clock that is ahead of all
that others say, by more than `MAX_AHEAD`, is not believed. Others are the members, whose heartbeats tell their time,
and the server of the stream. A gateway that hears nobody else believes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_AHEAD: Final = 10_000  # ms; signals are a second old, and clocks that are kept right differ by less


class AgreedClock:
    """The time of day (ms since 1970) by *clock*, not ahead of all that *others* return; see above.

    `ahead` says by how much (ms) the clock was ahead when that counted last; call `refresh` once a second.
    """

    def __init__(self, clock: Callable[[], int], others: Callable[[], list[int]]) -> None:
        self.ahead = 0
        self.own = clock
        self._others = others
        self._limit = 0  # up to which the clock is believed without asking the others

    def now(self) -> int:
        """The time that counts."""
        now = self.own()
        if now <= self._limit:
            return now
        self.ahead = 0
        if others := self._others():
            latest = max(others)
            self._limit = latest + MAX_AHEAD
            if now > self._limit:
                self.ahead = now - latest
                return latest
        return now

    def refresh(self) -> int:
        """Ask the others again, since their clocks may have been corrected; return by how much (ms) this is ahead."""
        self._limit = 0
        self.now()
        return self.ahead
