"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random

MAX_DOUBLINGS = 16  # beyond any limit; the number of failures is not bounded, and a float is


def retry_seconds(failures: int, first: float, longest: float) -> float:
    """Return the seconds until the next attempt after so many *failures* in a row, at least one.

    The *first* wait is doubled for each further failure, up to *longest*. Jitter takes up to half of it away, so that
    many who failed at the same moment do not come back at the same moment.
    """
    most: float = min(first * 2.0 ** min(failures - 1, MAX_DOUBLINGS), longest)
    return most * random.uniform(0.5, 1.0)
