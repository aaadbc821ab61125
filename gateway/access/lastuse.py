"""The time when each key was last used: kept in memory, and written at most once a minute to a file beside the keys.

It helps operators to decide whether a key can be removed; nothing else depends on it. A crash loses the last minute,
and while the disk cannot be written no time reaches it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from .keyfile import MAX_EXPIRY
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
        """Record that the keys with these *ids* are in use at *now* (ms since 1970)."""
        for id in ids:
            self._times[id] = now
            self._dirty = True

    def times(self) -> dict[str, int]:
        """The times of all keys, by id."""
        return dict(self._times)

    def pending_write(self, now: int, kept: Iterable[str], *, last: bool = False) -> Callable[[], None] | None:
        """A function that writes the file, to be called in any thread; None if nothing changed, or it is too early.

        Only the ids in *kept* are written. The *last* write, at a stop, is never too early.
        """
        if not self._dirty or (0 <= now - self._written < WRITE_INTERVAL and not last):
            return None
        ids = set(kept)
        self._times = {id: time for id, time in self._times.items() if id in ids}
        self._written, self._dirty = now, False
        data = json.dumps(self._times).encode()
        return lambda: write_secret(self._path, data)


def read_times(path: Path) -> dict[str, int]:
    """The times in the file at *path*; none if there is no such file, or it is not valid."""
    try:
        found = json.loads(path.read_bytes())
        return {id: time for id, time in found.items() if type(time) is int and 0 < time < MAX_EXPIRY}
    except (OSError, ValueError, AttributeError):
        return {}
