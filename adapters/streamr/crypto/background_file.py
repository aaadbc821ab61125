"""A small file of secrets that the worker thread writes; one write covers all changes before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.access.auth import write_secret

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]


class BackgroundFile:
    """Writes the result of *data* to *path* after each `save`; *work* is that of `gateway.adapter.Services`."""

    def __init__(self, path: Path, data: Callable[[], bytes], work: Work) -> None:
        self._path = path
        self._data = data
        self._work = work
        self._writing = self._changed = False

    def save(self) -> None:
        """Write the file soon."""
        self._changed = True
        if self._writing:
            return
        self._writing, self._changed = True, False
        data = self._data()
        self._work(lambda: write_secret(self._path, data), self._saved)

    def _saved(self, _nothing: None) -> None:
        self._writing = False
        if self._changed:
            self.save()
