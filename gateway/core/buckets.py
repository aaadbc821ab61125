"""Token buckets by key, in memory: how much of a resource each key may use, at once and over time.

A bucket holds `burst` tokens and gains `rate` a second. The number of buckets is bounded, and so is the memory of each:
a long key is replaced by its hash. The least recently used buckets are dropped; a key without a bucket has a full one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .bounded_maps import BoundedMap

MAX_BUCKETS = 50_000
MAX_KEY = 64  # characters of a key that is kept as it is; peers choose some keys, and may choose long ones


class TokenBuckets:
    """Token buckets with the same *rate* (tokens a second) and *burst*. *clock* gives seconds.

    What `spend` takes beyond *most_debt* tokens is forgiven.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float], most_debt: float = inf) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._lowest = -most_debt
        self._levels = BoundedMap[str | int, tuple[float, float]](MAX_BUCKETS)

    def take(self, key: str | int) -> float:
        """Take one token of *key* and return 0; if there is none, return the seconds until there is."""
        now = self._clock()
        if type(key) is str and len(key) > MAX_KEY:
            key = hash(key)
        level, then = self._levels.get(key) or (self._burst, now)
        level = min(self._burst, level + (now - then) * self._rate)
        wait = 0.0 if level >= 1 else (1 - level) / self._rate
        self._levels[key] = level if wait else level - 1, now
        return wait

    def spend(self, key: str | int, amount: float) -> float:
        """Take *amount* tokens of *key*, even if there are fewer; return the seconds until the debt is paid."""
        now = self._clock()
        if type(key) is str and len(key) > MAX_KEY:
            key = hash(key)
        level, then = self._levels.get(key) or (self._burst, now)
        level = max(self._lowest, min(self._burst, level + (now - then) * self._rate) - amount)
        self._levels[key] = level, now
        return 0.0 if level >= 0 else -level / self._rate
