"""Tables derived from other tables: updated incrementally, or rebuilt as a whole.

The manifest of an incremental table records which sequences of `bronze/messages` are in it, so each record is processed
once, even if the files that hold it were merged since. A rebuilt table records the state of its sources, and is left
alone while they have not changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from . import spans
from .checkpoint import Checkpoint
from .copies import add_once, remove_old_copies
from .run import BatchCounts, Run, record_batch
from .schemas import MESSAGES, TableSpec
from .sinks.parquet import Manifest, Table, part_of, sweep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_RECORDS = 2_000_000  # records that become one batch
DONE = "done"  # the note of an incremental table: spans by gateway
SOURCE_STATE = "made of"  # the note of a rebuilt table: batches and rows of its sources

SpansByGateway = dict[str, spans.Spans]
Transform = Callable[[Run, "DataFrame"], "DataFrame"]


def update(run: Run, job: str, tables: Mapping[TableSpec, Transform], after: Sequence[TableSpec] = ()) -> int:
    """Add to each of *tables* what its function makes of the records that are not in it; return the number of batches.

    Records that the incremental tables *after* do not have yet are left for later.
    """
    done = 0
    with Checkpoint(run.options.warehouse, job) as checkpoint:
        outputs, manifests = _open(run, job, tables, checkpoint)
        manifests = {spec: remove_old_copies(run, outputs[spec], manifests[spec]) for spec in tables}
        behind = min(manifests.values(), key=lambda manifest: manifest.batch)
        plan = checkpoint.unfinished_plan(behind)
        while plan is not None or (plan := _next_plan(run, behind, after)):
            began, batch = time.monotonic(), behind.batch + 1
            checkpoint.begin(batch, plan)
            rows = _records(run, plan)
            counts = BatchCounts(job, batch, *_seq_range(plan), rows_in=_record_count(plan))
            name = f"{batch:012d}"
            for spec, function in tables.items():
                if manifests[spec].batch >= batch:
                    continue  # this table was finished before the attempt ended
                staged = add_once(run, outputs[spec], manifests[spec], outputs[spec].stage(function(run, rows)))
                counts.rows_out += staged.rows
                manifests[spec] = _advanced(manifests[spec], checkpoint.id, batch, plan)
                if list(tables)[-1] is spec:
                    record_batch(run, counts, began)
                outputs[spec].append(staged, part_of(name, staged), manifests[spec])
            behind = min(manifests.values(), key=lambda manifest: manifest.batch)
            counts.seconds = time.monotonic() - began
            run.say(str(counts))
            plan, done = None, done + 1
    if not done:
        run.say_once(f"{job}: nothing to do, {_size(behind):,} records were processed before")
    return done


def rebuild(
    run: Run, job: str, sources: Sequence[TableSpec], tables: Mapping[TableSpec, Callable[[Run], DataFrame]]
) -> int:
    """Rebuild *tables* if one of *sources* has changed since; return 1 if so, else 0."""
    with Checkpoint(run.options.warehouse, job) as checkpoint:
        outputs, manifests = _open(run, job, tables, checkpoint)
        of = [state_of(run.table(spec).manifest()) for spec in sources]
        stale = [spec for spec in tables if manifests[spec].notes.get(SOURCE_STATE) != of]
        if not stale:
            run.say_once(f"{job}: nothing to do, its sources have not changed")
            return 0
        began = time.monotonic()
        batch = max(manifest.batch for manifest in manifests.values()) + 1
        counts = BatchCounts(job, batch, rows_in=sum(rows for _, rows in of))
        checkpoint.begin(batch, {"of": of})
        for spec in stale:
            staged = outputs[spec].stage(tables[spec](run))
            counts.rows_out += staged.rows
            part = part_of(f"{batch:012d}", staged)
            manifest = Manifest(checkpoint.id, batch, [part], {SOURCE_STATE: of})
            outputs[spec].replace({part.name: staged}, manifest)
        record_batch(run, counts, began)
        counts.seconds = time.monotonic() - began
        run.say(str(counts))
        return 1


def _open(
    run: Run, job: str, tables: Iterable[TableSpec], checkpoint: Checkpoint
) -> tuple[dict[TableSpec, Table], dict[TableSpec, Manifest]]:
    """Return *tables* and their manifests, which belong to *checkpoint*, and clear away what earlier runs left."""
    outputs = {spec: run.table(spec, job) for spec in tables}
    manifests = {spec: outputs[spec].manifest() for spec in tables}
    for manifest in manifests.values():
        # What one table has done, it says itself; tables that are filled together also need the plan of their batch.
        checkpoint.verify(manifest, replaceable=len(manifests) == 1)
    sweep(run.options.warehouse, job, run.options.grace_seconds)
    return outputs, manifests


def covered(manifest: Manifest) -> SpansByGateway:
    """Return the records that are in a table filled from the log, or in an incremental table derived from one."""
    if DONE in manifest.notes:
        return {gateway: spans.union(told) for gateway, told in manifest.notes[DONE].items()}
    gateways = {gateway for part in manifest.parts for gateway in part.spans}
    return {
        gateway: spans.union(*(part.spans.get(gateway, []) for part in manifest.parts)) for gateway in sorted(gateways)
    }


def state_of(manifest: Manifest) -> list[int]:
    """Return what changes whenever rows are added to a table or removed, and not when its files are merged."""
    return [manifest.batch, sum(part.rows for part in manifest.parts)]


def _next_plan(run: Run, manifest: Manifest, after: Sequence[TableSpec]) -> dict[str, Any] | None:
    """Return the records to process next, at most about `BATCH_RECORDS`; None if there are none."""
    have = covered(run.table(MESSAGES).manifest())
    done = covered(manifest) if DONE in manifest.notes else {}
    limits = [covered(run.table(spec).manifest()) for spec in after]
    left = BATCH_RECORDS
    todo: SpansByGateway = {}
    for gateway, told in have.items():
        new = spans.minus(told, done.get(gateway, []))
        for limit in limits:
            new = spans.overlap(new, limit.get(gateway, []))
        for first, last in new:
            if left > 0:
                todo.setdefault(gateway, []).append([first, min(last, first + left - 1)])
                left -= last - first + 1
    return {"todo": todo} if todo else None


def _records(run: Run, plan: dict[str, Any]) -> DataFrame:
    """Return the rows of `bronze/messages` that *plan* names, read from only the files that hold them."""
    table, todo = run.table(MESSAGES), plan["todo"]
    parts = [
        part
        for part in table.manifest().parts
        if any(spans.overlap(part.spans.get(gateway, []), told) for gateway, told in todo.items())
    ]
    rows = table.frame(run.spark, parts)
    return rows.where(
        reduce(
            or_,
            (
                (F.col("gateway_id") == gateway) & F.col("seq").between(first, last)
                for gateway, told in todo.items()
                for first, last in told
            ),
        )
    )


def _advanced(manifest: Manifest, checkpoint: str, batch: int, plan: dict[str, Any]) -> Manifest:
    done = covered(manifest) if DONE in manifest.notes else {}
    for gateway, told in plan["todo"].items():
        done[gateway] = spans.union(done.get(gateway, []), told)
    return Manifest(checkpoint, batch, manifest.parts, manifest.notes | {DONE: done})


def _size(manifest: Manifest) -> int:
    return sum(last - first + 1 for told in manifest.notes.get(DONE, {}).values() for first, last in told)


def _seq_range(plan: dict[str, Any]) -> tuple[int, int]:
    ends = [span for told in plan["todo"].values() for span in told]
    return min(first for first, _ in ends), max(last for _, last in ends)


def _record_count(plan: dict[str, Any]) -> int:
    return sum(last - first + 1 for told in plan["todo"].values() for first, last in told)
