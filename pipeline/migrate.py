"""Turns a warehouse of format 1 into one of Delta tables, in place.

Format 1 had a `_manifest.json` in each table, which named the folders of valid files. Version 0 of the Delta table
names the same files, which stay where they are. A table is migrated by one commit and the warehouse by the rename of
its format file, so the command can be interrupted at any moment and run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from . import spans
from .config import FORMAT, FORMAT_FILE, MANIFEST
from .errors import DamagedWarehouse
from .locks import FOLDER, JobLock
from .schemas import BATCHES, MESSAGES, REJECTS, STREAMR, TABLES, TableSpec
from .sinks.delta import Table
from .sinks.files import File, described, write_json
from .sinks.state import TableState

DONE: Final = "done"  # the note of format 1 with the sequences that were processed, by gateway
LEFT_OVER: Final = (".staging", ".trash")  # folders of format 1
JOBS: Final = ("compact", "publish", *dict.fromkeys(spec.job for spec in TABLES if spec.job))

Manifest = dict[str, Any]


def migrate(warehouse: Path, say: Callable[[str], None]) -> None:
    """Migrate *warehouse*; raise `JobLocked` if a job is running, `DamagedWarehouse` if files are missing."""
    with ExitStack() as held:
        for job in JOBS:
            held.enter_context(JobLock(warehouse, job))
        manifests = {spec: found for spec in TABLES if (found := _manifest(warehouse, spec)) is not None}
        for spec, manifest in manifests.items():
            table = Table(warehouse, spec, spec.job)
            if table.exists():
                continue  # an interrupted migration has done it
            files = list(_files(table, _valid_parts(warehouse, spec, manifests)))
            state = _state(warehouse, spec, manifest, sum(file.rows for file in files))
            table.create_with(files, state, _transactions(spec, manifests))
            say(f"{spec.name}: {len(files)} files, {state.rows:,} rows")
        write_json(warehouse / FORMAT_FILE, {"format": FORMAT})
        _remove_left_over(warehouse, list(manifests))
    say(f"{warehouse} has format {FORMAT}")


def _manifest(warehouse: Path, spec: TableSpec) -> Manifest | None:
    path = warehouse / spec.name / MANIFEST
    try:
        manifest: Manifest = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedWarehouse(f"{path} cannot be read: {error}") from None
    return manifest


def _state(warehouse: Path, spec: TableSpec, manifest: Manifest, rows: int) -> TableState:
    """Return what *manifest* says of its table, which has so many *rows*."""
    parts, notes = manifest["parts"], dict(manifest["notes"])
    state = TableState(manifest["batch"], rows, changes=manifest["batch"], notes=notes)
    if spec is BATCHES:
        return replace(state, batch=len(parts))
    if spec is MESSAGES:
        segments: dict[str, set[int]] = {}
        for part in parts:
            state = replace(state, spans=state.covering(part["spans"]))
            segments.setdefault(part["gateway"], set()).update(part["segments"])
        return replace(state, segments={gateway: sorted(keys) for gateway, keys in segments.items()})
    if DONE in notes:
        state = replace(state, spans={gateway: spans.union(ranges) for gateway, ranges in notes.pop(DONE).items()})
    plan = _plan(warehouse, spec.job)
    follows = spec is STREAMR and plan.get("batch") == state.batch  # other tables may lack that batch
    return replace(state, plan=plan["plan"] if follows else None)


def _plan(warehouse: Path, job: str) -> dict[str, Any]:
    """Return the last plan of *job*, with the number of its batch."""
    try:
        plan: dict[str, Any] = json.loads((warehouse / FOLDER / job / "plan.json").read_text())
    except FileNotFoundError:
        return {}
    return plan


def _valid_parts(warehouse: Path, spec: TableSpec, manifests: dict[TableSpec, Manifest]) -> list[dict[str, Any]]:
    """Return the parts of a table, without those of a batch that another table of its job does not have yet."""
    parts: list[dict[str, Any]] = manifests[spec]["parts"]
    if spec is REJECTS:
        unfinished = _unfinished_rejects(_plan(warehouse, spec.job), manifests.get(MESSAGES))
        return [part for part in parts if part["name"] != unfinished]
    if spec is BATCHES:
        done = _batches(manifests)
        return [part for part in parts if _counted(part)[1] <= done.get(_counted(part)[0], 0)]
    return parts


def _unfinished_rejects(plan: dict[str, Any], messages: Manifest | None) -> str:
    """Return the name of the part of rejects whose batch is not in `bronze/messages`, or "" if there is none."""
    if plan.get("batch", 0) <= (messages or {}).get("batch", 0):
        return ""
    batch_plan = plan["plan"]
    if "segments" in batch_plan:
        covers = spans.union([[segment["first"], segment["last"]] for segment in batch_plan["segments"]])
    else:
        covers = [[batch_plan["after"] + 1, batch_plan["until"]]]
    return f"batch={batch_plan['gateway']}-{covers[0][0]:020d}-{covers[-1][1]:020d}"


def _counted(part: dict[str, Any]) -> tuple[str, int]:
    """Return the job and the batch that a part of `ops/batches` counts."""
    job, _, batch = part["name"].removeprefix("batch=").rpartition("-")
    return job, int(batch)


def _batches(manifests: dict[TableSpec, Manifest]) -> dict[str, int]:
    """Return the last finished batch of each job: that of its last table in `TABLES`."""
    counted = [spec for spec in TABLES if spec in manifests and spec.job and spec is not REJECTS]
    return {spec.job: manifests[spec]["batch"] for spec in counted}


def _transactions(spec: TableSpec, manifests: dict[TableSpec, Manifest]) -> dict[str, int]:
    """Return the jobs whose batches are in a table, with the last one."""
    if spec is not BATCHES:
        return {spec.job: manifests[spec]["batch"]}
    counted: dict[str, int] = {}
    done = _batches(manifests)
    for job, batch in map(_counted, manifests[spec]["parts"]):
        if batch <= done.get(job, 0):
            counted[job] = max(batch, counted.get(job, 0))
    return counted


def _files(table: Table, parts: list[dict[str, Any]]) -> Iterator[File]:
    for part in parts:
        folder = table.path / part["name"]
        found = [described(table.path, file) for file in sorted(folder.glob("[!._]*.parquet"))]
        if sum(file.rows for file in found) != part["rows"]:
            raise DamagedWarehouse(f"{folder} has not the {part['rows']} rows that {MANIFEST} says: restore it")
        yield from found


def _remove_left_over(warehouse: Path, specs: list[TableSpec]) -> None:
    for folder in LEFT_OVER:
        shutil.rmtree(warehouse / folder, ignore_errors=True)
    for path in (warehouse / FOLDER).glob("*/*.json"):
        if path.name in ("state.json", "plan.json"):
            path.unlink()
    for spec in specs:
        (warehouse / spec.name / MANIFEST).unlink()
