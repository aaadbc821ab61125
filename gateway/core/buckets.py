"""Token buckets by key, in memory: how much of something each key may use, now and over time.

A bucket holds `burst` tokens and gains `rate` a second. The number of buckets is bounded, and so is what each of them
takes: a long key is remembered by its hash. The buckets that were not used for longest are forgotten, full.
"""

from __future__ import annotations

from collections.abc import Callable

from .bounded import BoundedMap

MAX_BUCKETS = 50_000
MAX_KEY = 64  # characters of a key that is kept as it is; peers choose some of them, and choose long ones


class TokenBuckets:
    """Token buckets with one *rate* (a second) and one *burst*. *clock* gives seconds."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._levels = BoundedMap[str | int, tuple[float, float]](MAX_BUCKETS)

    def take(self, key: str | int) -> float:
        """Take one token of *key*; 0 if there was one, else the seconds until there is."""
        now = self._clock()
        if type(key) is str and len(key) > MAX_KEY:
            key = hash(key)
        level, then = self._levels.get(key) or (self._burst, now)
        level = min(self._burst, level + (now - then) * self._rate)
        wait = 0.0 if level >= 1 else (1 - level) / self._rate
        self._levels[key] = level if wait else level - 1, now
        return wait

    def spend(self, key: str | int, amount: float) -> float:
        """Take *amount* tokens of *key*, also where there are fewer; the seconds until the debt is paid, 0 without."""
        now = self._clock()
        if type(key) is str and len(key) > MAX_KEY:
            key = hash(key)
        level, then = self._levels.get(key) or (self._burst, now)
        level = min(self._burst, level + (now - then) * self._rate) - amount
        self._levels[key] = level, now
        return 0.0 if level >= 0 else -level / self._rate
