"""A lock for each job of a warehouse, so that one process at a time runs it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from .errors import JobLocked

FOLDER = ".checkpoints"  # as in format 1, so that a version that writes that format is noticed as well
PATIENCE_SECONDS = 30.0  # for another process to finish `compact` or a batch


class JobLock:
    """The lock of *job* in *warehouse*, held until `close`; `JobLocked` if another process has it."""

    def __init__(self, warehouse: Path, job: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.path = warehouse / FOLDER / job
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        if not _locked(self._lock, patience_seconds):
            os.close(self._lock)
            raise JobLocked(f"another process is running {job} on {warehouse}; stop it first")

    def __enter__(self) -> JobLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; further calls do nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def note(self) -> dict[str, Any]:
        """Return the note of a job that has no tables."""
        try:
            note: dict[str, Any] = json.loads((self.path / "note.json").read_text())
        except FileNotFoundError:
            return {}
        return note


def _locked(file: int, patience_seconds: float) -> bool:
    """Lock *file*; return False if that fails for *patience_seconds*."""
    ends = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= ends:
                return False
            time.sleep(0.05)
        else:
            return True
