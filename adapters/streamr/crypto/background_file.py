"""A small file of secrets that the worker thread writes; one write covers all changes before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.access.authorization import write_secret

Work = Callable[[Callable[[], Any], Callable[[Any], None]], None]


class BackgroundFile:
    """Writes the result of *data* to *path* after each `save`; *work* is `work_aside` of `gateway.adapter.Services`.

    A write that fails, perhaps on a full disk, is tried again with each `tick`.
    """

    def __init__(self, path: Path, data: Callable[[], bytes], work: Work) -> None:
        self._path = path
        self._data = data
        self._work = work
        self._writing = self._changed = False
        self._waiting: list[Callable[[bool], None]] = []  # for the next write
        self._told: list[Callable[[bool], None]] = []  # of the outcome of the one under way

    def when_written(self, call: Callable[[bool], None]) -> None:
        """Call *call* once all that was saved so far is on disk, with True; with False if it cannot be written now."""
        if self._changed:
            self._waiting.append(call)
        elif self._writing:
            self._told.append(call)
        else:
            call(True)

    def save(self) -> None:
        """Write the file soon."""
        self._changed = True
        if self._writing:
            return
        self._writing, self._changed = True, False
        self._told, self._waiting = self._waiting, []
        data = self._data()

        def write() -> bool:
            write_secret(self._path, data)
            return True

        self._work(write, self._saved)

    def tick(self) -> None:
        """Write again what could not be written; called once a second."""
        if self._changed and not self._writing:
            self.save()

    def _saved(self, written: bool | None) -> None:
        self._writing = False
        told, self._told = self._told, []
        for call in told:
            call(written is True)
        if not written:
            self._changed = True
        elif self._changed:
            self.save()
