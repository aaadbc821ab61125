"""Waiting for what happens in another thread or process, and ports for programs that are to listen."""

from __future__ import annotations

import socket
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


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
