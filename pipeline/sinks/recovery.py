"""The end of a table's log: made durable after each commit, and repaired after a power failure.

The driver waits for the disk after each commit, so only the newest commit, what was written with it, and a file that it
merged others into can be incomplete. The package `deltalake` does not notice: it takes an empty commit for one without
changes and some lines of a commit for all of them, and opens no table whose checkpoint is torn.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from .files import sync
from .state import KEY

LINES: Final = "trellisLines"  # among the metadata of a commit: how many lines it has
HINT: Final = "_last_checkpoint"  # names the newest checkpoint; readers do without it
_COMMIT: Final = re.compile(r"\d{20}\.json")
_CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")

Actions = list[dict[str, Any]]


def recover(log: Path) -> None:
    """Remove the newest commit and the newest checkpoint in *log* if they are incomplete; sync them if not."""
    newest = _newest(log)
    if newest is None:
        return
    version = int(newest[:20])
    if _is_whole(log / newest):
        sync_version(log, version)
    else:
        # Its checkpoint has the rows and not the state, so it would be wrong even if it is whole.
        _remove(log, _checkpoint(version), HINT, newest)
    checkpoint = max(filter(_CHECKPOINT.fullmatch, os.listdir(log)), default=None)
    if checkpoint is not None and not _is_readable(log / checkpoint):
        _remove(log, HINT, checkpoint)
    elif not _is_true(log / HINT):
        _remove(log, HINT)


def is_torn(log: Path) -> bool:
    """Whether `recover` would remove the newest commit in *log*, which therefore must not be read."""
    newest = _newest(log)
    return newest is not None and not _is_whole(log / newest)


def sync_version(log: Path, version: int) -> None:
    """Wait until the commit *version* in *log*, and a checkpoint that was made with it, are on the disk."""
    for name in (f"{version:020d}.json", _checkpoint(version), HINT):
        if (log / name).exists():
            sync(log / name)
    sync(log)


def sync_added(log: Path, version: int) -> None:
    """Wait until the files that the commit *version* in *log* adds are on the disk."""
    for path, _ in _added(log, _actions(log / f"{version:020d}.json")):
        sync(path)
    sync(log.parent)


def _newest(log: Path) -> str | None:
    return max(filter(_COMMIT.fullmatch, os.listdir(log)), default=None)


def _checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _actions(commit: Path) -> Actions:
    return [json.loads(line) for line in commit.read_bytes().splitlines()]


def _added(log: Path, actions: Actions) -> list[tuple[Path, int]]:
    """Return the files that *actions* add, with their sizes."""
    added = [action["add"] for action in actions if "add" in action]
    return [(log.parent / unquote(file["path"]), file["size"]) for file in added]


def _is_whole(commit: Path) -> bool:
    try:
        actions = _actions(commit)
    except ValueError:
        return False
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    if KEY not in info:
        return bool(actions)  # another program's commit
    if info["operation"] != "OPTIMIZE":
        return bool(len(actions) >= info.get(LINES, 1))
    metrics = info["operationMetrics"]
    lines = 1 + metrics["numFilesAdded"] + metrics["numFilesRemoved"]
    return bool(len(actions) >= lines) and all(
        path.is_file() and path.stat().st_size == size and _is_readable(path)
        for path, size in _added(commit.parent, actions)
    )


def _is_true(hint: Path) -> bool:
    """Whether there is the checkpoint that *hint* names, if there is a hint."""
    try:
        version = json.loads(hint.read_bytes())["version"]
    except FileNotFoundError:
        return True
    except (ValueError, TypeError, KeyError):
        return False
    return any(hint.parent.glob(f"{version:020d}.checkpoint.*"))


def _is_readable(file: Path) -> bool:
    """Whether the footer of the Parquet *file* can be read."""
    try:
        pq.read_metadata(file)
    except (pa.ArrowInvalid, OSError):
        return False
    return True


def _remove(log: Path, *names: str) -> None:
    for name in names:
        (log / name).unlink(missing_ok=True)
    sync(log)
