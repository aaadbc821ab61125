"""How far a job has come, and that nobody else is doing it.

A checkpoint is a directory with a lock, an id, and the plan of the batch that is being worked on. The plan is written
before the work, so that a batch that is done again is the same batch; the table's manifest, which names the
checkpoint, says which batch was finished last. So neither can be lost without the other noticing.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from .errors import Busy, Damaged
from .sinks.parquet import Manifest, write_json

FOLDER = ".checkpoints"
PATIENCE_SECONDS = 30.0  # for `compact`, or a batch, to be finished by somebody else


class Checkpoint:
    """The checkpoint of *job* in *warehouse*, locked until `close`; `Busy` where somebody else keeps it."""

    def __init__(self, warehouse: Path, job: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.path = warehouse / FOLDER / job
        self.job = job
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        if not _locked(self._lock, patience_seconds):
            os.close(self._lock)
            raise Busy(f"another process is running {job} on {warehouse}; stop it first")
        self.id = ""

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have it; doing it again does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def agree(self, manifest: Manifest) -> None:
        """Make sure that this checkpoint is the one that *manifest* was written with; `Damaged` where it is not."""
        told = self._read("state.json")
        if not told and not manifest.checkpoint:
            told = {"id": uuid.uuid4().hex}
            write_json(self.path / "state.json", told)
        elif not told:
            raise Damaged(
                f"the checkpoint {self.path} is gone, but {manifest.batch} batches were written with it: going on"
                " would write them again. Put it back, or remove the job's tables and run it from the beginning"
            )
        elif manifest.checkpoint not in ("", told["id"]) or (not manifest.checkpoint and self._planned() > 1):
            raise Damaged(
                f"the tables of {self.job} are not those that the checkpoint {self.path} speaks of: going on would"
                " leave out what was in them. Put them back, or remove the checkpoint and all of the job's tables"
            )
        self.id = str(told["id"])

    def unfinished(self, manifest: Manifest) -> dict[str, Any] | None:
        """The plan of a batch that was begun and is not in *manifest*."""
        plan = self._read("plan.json")
        return plan["plan"] if plan and plan["batch"] == manifest.batch + 1 else None

    def begin(self, batch: int, plan: dict[str, Any]) -> None:
        """Write the *plan* of *batch* down before it is worked on."""
        write_json(self.path / "plan.json", {"batch": batch, "plan": plan})

    def note(self) -> dict[str, Any]:
        """What was noted here, by whoever uses a checkpoint without batches."""
        return self._read("note.json")

    def _planned(self) -> int:
        return int(self._read("plan.json").get("batch", 0))

    def _read(self, name: str) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise Damaged(f"{self.path / name} cannot be read: {error}") from None
        return told


def _locked(file: int, patience_seconds: float) -> bool:
    """Lock *file*, within *patience_seconds* or not at all."""
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
