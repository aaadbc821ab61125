"""The progress of a job, and a lock against other processes that run it.

A checkpoint is a directory with a lock, an id, and the plan of the current batch. The plan is written before the work,
so that a repeated batch is the same batch. The manifest of the table names the checkpoint and the last finished batch,
so the loss of either is detected.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from .errors import CheckpointLocked, DamagedWarehouse
from .sinks.parquet import Manifest, write_json

FOLDER = ".checkpoints"
PATIENCE_SECONDS = 30.0  # for another process to finish `compact` or a batch


class Checkpoint:
    """The checkpoint of *job* in *warehouse*, locked until `close`; `CheckpointLocked` if another process has it."""

    def __init__(self, warehouse: Path, job: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.path = warehouse / FOLDER / job
        self.job = job
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        if not _locked(self._lock, patience_seconds):
            os.close(self._lock)
            raise CheckpointLocked(f"another process is running {job} on {warehouse}; stop it first")
        self.id = ""

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; further calls do nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def verify(self, manifest: Manifest, *, replaceable: bool = False) -> None:
        """Raise `DamagedWarehouse` unless *manifest* was written with this checkpoint, or neither has been used yet.

        A checkpoint that is gone is made again if it is *replaceable*: the manifest says all that it said.
        """
        told = self._read("state.json")
        if not told and (replaceable or not manifest.checkpoint):
            told = {"id": manifest.checkpoint or uuid.uuid4().hex}
            write_json(self.path / "state.json", told)
        elif not told:
            raise DamagedWarehouse(
                f"the checkpoint {self.path} is gone, but {manifest.batch} batches were written with it: another run"
                " would write them again. Put it back, or remove the job's tables and run it from the beginning"
            )
        elif manifest.checkpoint not in ("", told["id"]) or (not manifest.checkpoint and self._planned() > 1):
            raise DamagedWarehouse(
                f"the tables of {self.job} are not those that the checkpoint {self.path} belongs to: another run would"
                " leave out what was in them. Put them back, or remove the checkpoint and all of the job's tables"
            )
        self.id = str(told["id"])

    def unfinished_plan(self, manifest: Manifest) -> dict[str, Any] | None:
        """Return the plan of a batch that was begun and is not in *manifest*, or None."""
        plan = self._read("plan.json")
        return plan["plan"] if plan and plan["batch"] == manifest.batch + 1 else None

    def begin(self, batch: int, plan: dict[str, Any]) -> None:
        """Record the *plan* of *batch*, before the work on it starts."""
        write_json(self.path / "plan.json", {"batch": batch, "plan": plan})

    def note(self) -> dict[str, Any]:
        """Return the note of a job that uses its checkpoint without batches."""
        return self._read("note.json")

    def _planned(self) -> int:
        return int(self._read("plan.json").get("batch", 0))

    def _read(self, name: str) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DamagedWarehouse(f"{self.path / name} cannot be read: {error}") from None
        return told


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
