"""Waiting for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 60.0  # for anything that should take a moment


def until(true: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Wait until something is *true*; fail after so many *seconds*."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
