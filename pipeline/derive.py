"""Tables made of other tables: grown by what is new, or made anew as a whole.

A grown table remembers, in its manifest, which sequences of `bronze/messages` are in it; so each record is looked at
once, whatever became of the files it stands in. A table that is made anew remembers what it was made of, and is left
alone while nothing has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from . import spans
from .checkpoint import Checkpoint
from .run import Counts, Run, record
from .schemas import MESSAGES, TableSpec
from .sinks.parquet import Manifest, part_of, sweep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH = 2_000_000  # records that become one batch
DONE = "done"  # the note of a grown table: spans by gateway
MADE_OF = "made of"  # the note of a table that is made anew: batches and rows of its sources

Todo = dict[str, spans.Spans]
Grow = Callable[[Run, "DataFrame"], "DataFrame"]


def grow(run: Run, job: str, tables: Mapping[TableSpec, Grow], after: Sequence[TableSpec] = ()) -> int:
    """Add to each of *tables* what its function makes of the records that are not in it; how many batches that took.

    No record is taken that the grown tables *after* do not have yet.
    """
    done = 0
    with Checkpoint(run.options.warehouse, job) as checkpoint:
        outs = {spec: run.table(spec, job) for spec in tables}
        manifests = {spec: outs[spec].manifest() for spec in tables}
        for manifest in manifests.values():
            checkpoint.agree(manifest)
        sweep(run.options.warehouse, job, run.options.grace_seconds)
        behind = min(manifests.values(), key=lambda manifest: manifest.batch)
        plan = checkpoint.unfinished(behind)
        while plan is not None or (plan := _next(run, behind, after)):
            began, batch = time.monotonic(), behind.batch + 1
            checkpoint.begin(batch, plan)
            rows = _records(run, plan)
            counts = Counts(job, batch, *_ends(plan), rows_in=_size(plan))
            name = f"{batch:012d}"
            for spec, function in tables.items():
                if manifests[spec].batch >= batch:
                    continue  # this table was finished before the attempt ended
                staged = outs[spec].stage(function(run, rows))
                counts.rows_out += staged.rows
                manifests[spec] = _with(manifests[spec], checkpoint.id, batch, plan)
                if list(tables)[-1] is spec:
                    record(run, counts, began)
                outs[spec].append(staged, part_of(name, staged), manifests[spec])
            behind = min(manifests.values(), key=lambda manifest: manifest.batch)
            counts.seconds = time.monotonic() - began
            run.say(str(counts))
            plan, done = None, done + 1
    return done


def remake(
    run: Run, job: str, sources: Sequence[TableSpec], tables: Mapping[TableSpec, Callable[[Run], DataFrame]]
) -> int:
    """Make *tables* anew if one of *sources* has changed since; 1 if they were made, else 0."""
    with Checkpoint(run.options.warehouse, job) as checkpoint:
        outs = {spec: run.table(spec, job) for spec in tables}
        manifests = {spec: outs[spec].manifest() for spec in tables}
        for manifest in manifests.values():
            checkpoint.agree(manifest)
        sweep(run.options.warehouse, job, run.options.grace_seconds)
        of = [_state(run.table(spec).manifest()) for spec in sources]
        stale = [spec for spec in tables if manifests[spec].notes.get(MADE_OF) != of]
        if not stale:
            return 0
        began = time.monotonic()
        batch = max(manifest.batch for manifest in manifests.values()) + 1
        counts = Counts(job, batch, rows_in=sum(rows for _, rows in of))
        checkpoint.begin(batch, {"of": of})
        for spec in stale:
            staged = outs[spec].stage(tables[spec](run))
            counts.rows_out += staged.rows
            part = part_of(f"{batch:012d}", staged)
            manifest = Manifest(checkpoint.id, batch, [part], {MADE_OF: of})
            outs[spec].replace({part.name: staged}, manifest)
        record(run, counts, began)
        counts.seconds = time.monotonic() - began
        run.say(str(counts))
        return 1


def covered(manifest: Manifest) -> Todo:
    """The records in a table that is filled from the log, or grown from one that is."""
    if DONE in manifest.notes:
        return {gateway: spans.union(told) for gateway, told in manifest.notes[DONE].items()}
    gateways = {gateway for part in manifest.parts for gateway in part.spans}
    return {
        gateway: spans.union(*(part.spans.get(gateway, []) for part in manifest.parts)) for gateway in sorted(gateways)
    }


def _next(run: Run, manifest: Manifest, after: Sequence[TableSpec]) -> dict[str, Any] | None:
    """The records to take next, at most about `BATCH`."""
    have = covered(run.table(MESSAGES).manifest())
    done = covered(manifest) if DONE in manifest.notes else {}
    limits = [covered(run.table(spec).manifest()) for spec in after]
    left = BATCH
    todo: Todo = {}
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
    """The rows of `bronze/messages` that *plan* names, read from no more files than need be."""
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


def _with(manifest: Manifest, checkpoint: str, batch: int, plan: dict[str, Any]) -> Manifest:
    done = covered(manifest) if DONE in manifest.notes else {}
    for gateway, told in plan["todo"].items():
        done[gateway] = spans.union(done.get(gateway, []), told)
    return Manifest(checkpoint, batch, manifest.parts, {DONE: done})


def _ends(plan: dict[str, Any]) -> tuple[int, int]:
    ends = [span for told in plan["todo"].values() for span in told]
    return min(first for first, _ in ends), max(last for _, last in ends)


def _size(plan: dict[str, Any]) -> int:
    return sum(last - first + 1 for told in plan["todo"].values() for first, last in told)


def _state(manifest: Manifest) -> list[int]:
    return [manifest.batch, sum(part.rows for part in manifest.parts)]
