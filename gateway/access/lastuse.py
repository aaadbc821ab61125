"""When each key was last used: kept in memory, and written at most once a minute to a file beside the keys.

It is for people who wonder whether a key can go. A crash loses the last minute of it, and a disk that cannot be
written all that comes after; nothing depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from .keyfile import FOREVER
from .secretfile import write_secret

FILE_NAME = "last-used.json"
WRITE_INTERVAL = 60_000  # ms between two writes


class LastUse:
    """The time (ms since 1970) at which each key, by its id, was last seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._times = read_times(path)
        self._written = 0
        self._dirty = False

    def record(self, ids: Iterable[str], now: int) -> None:
        """The keys with these *ids* are in use."""
        for id in ids:
            self._times[id] = now
            self._dirty = True

    def pending_write(self, now: int, kept: Iterable[str], *, last: bool = False) -> Callable[[], None] | None:
        """What writes the file, to be called in any thread; None where there is nothing new, or it is too early.

        *kept* are the ids that there are. Before the *last* time it is never too early.
        """
        if not self._dirty or (0 <= now - self._written < WRITE_INTERVAL and not last):
            return None
        ids = set(kept)
        self._times = {id: time for id, time in self._times.items() if id in ids}
        self._written, self._dirty = now, False
        data = json.dumps(self._times).encode()
        return lambda: write_secret(self._path, data)


def read_times(path: Path) -> dict[str, int]:
    """What was written to *path*; nothing where there is no such file, or one that makes no sense."""
    try:
        found = json.loads(path.read_bytes())
        return {id: time for id, time in found.items() if type(time) is int and 0 < time < FOREVER}
    except (OSError, ValueError, AttributeError):
        return {}
