"""Turns every record of the log into one row of `bronze/messages`; invalid lines become rows of `bronze/rejects`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F

from pipeline import spans
from pipeline.config import HttpSource, LogSource
from pipeline.errors import DamagedWarehouse, PipelineError
from pipeline.locks import JobLock
from pipeline.places import Place, escape_glob, remove_folder
from pipeline.run import BatchCounts, Run, check_batches, record_batch
from pipeline.schemas import MESSAGES, REJECTS
from pipeline.sinks.delta import Table
from pipeline.sinks.files import Staged, finished
from pipeline.sinks.state import TableState
from pipeline.sources import gateway as remote
from pipeline.sources import segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB = "ingest"
CONFLICT_REASON = "foreign: the table has a different record %d"

Plan = dict[str, Any]


class ReadBatch(NamedTuple):
    """What was read for a plan: rows that no commit names yet, rejects if there are any, and the number of lines.

    *covers* are the sequences that were read, *segments* the keys of the segments that had them. *left* are folders
    that nobody needs once the rejects are in their table.
    """

    gateway: str
    covers: spans.Spans
    segments: list[int]
    staged: Staged
    rejects: DataFrame | None
    lines: int
    left: tuple[Place, ...] = ()

    def counts(self, number: int, rejected: int) -> BatchCounts:
        """Return the counts of this batch, which is the *number*-th."""
        first, last = (self.covers[0][0], self.covers[-1][1]) if self.covers else (0, 0)
        return BatchCounts(JOB, number, first, last, self.lines, self.staged.rows, rejected)

    def advanced(self, state: TableState, counts: list[Any]) -> TableState:
        """Return the state of the table after this batch, which was *state* before; *counts* are for `ops/batches`."""
        keys = sorted({*state.segments.get(self.gateway, ()), *self.segments})
        return replace(
            state,
            batch=state.batch + 1,
            spans=state.covering({self.gateway: self.covers}),
            segments=state.segments | {self.gateway: keys},
            counts=counts,
        )


def run(run: Run) -> int:
    """Ingest all records that are not in the table yet; return the number of batches."""
    done = 0
    with JobLock(run.options.warehouse, JOB):
        messages, rejects = run.table(MESSAGES, JOB), run.table(REJECTS, JOB)
        state = messages.state()
        check_batches(run, JOB, state)
        plan = _unfinished_plan(rejects.state(), state)
        while plan is not None or (plan := _next_plan(run, state)) is not None:
            began, batch = time.monotonic(), _read(run, messages, rejects, state, plan)
            counts = batch.counts(state.batch + 1, _add_rejects(rejects, batch, state.batch + 1, plan))
            state = messages.append(batch.staged, batch.advanced(state, counts.row(began)))
            record_batch(run, JOB, state)
            run.say(str(counts))
            plan, done = None, done + 1
    if not done:
        run.say_once(f"{JOB}: nothing to do, there are no new records")
    return done


def _unfinished_plan(rejects: TableState, messages: TableState) -> Plan | None:
    """Return the plan of a batch whose rejects are in their table, and whose records are not; None if there is none."""
    if rejects.batch > messages.batch + 1:
        raise DamagedWarehouse(
            f"{REJECTS.name} has {rejects.batch} batches and {MESSAGES.name} only {messages.batch}: put back what is"
            " missing; or remove both and ops/batches, and ingest begins again"
        )
    return rejects.plan if rejects.batch > messages.batch else None


def _next_plan(run: Run, state: TableState) -> Plan | None:
    """Plan the next batch: new segments of a log, or the next records of a gateway; None if there are none."""
    match run.options.source:
        case LogSource() as source:
            directory = source.directory
            if not directory.is_dir():
                raise PipelineError(f"there is no log in {directory}; name its directory with --source log:DIR")
            gateway = segments.gateway_id(directory)
            if gateway is None:
                return None
            known = set(state.segments.get(gateway, ()))
            limits = run.options.batch_bytes, run.options.batch_segments
            found = segments.find_new(directory, known, *limits, covered=state.spans.get(gateway, []))
            return {"gateway": gateway, "segments": [segment.dump() for segment in found]} if found else None
        case HttpSource() as source:
            return remote.plan_batch(source, lambda gateway: state.spans.get(gateway, []))
    raise PipelineError("ingest needs a source: --source log:DIR or http:URL")


def _read(run: Run, messages: Table, rejects: Table, state: TableState, plan: Plan) -> ReadBatch:
    """Read what *plan* names; the same plan always gives the same rows."""
    batch = _read_segments(run, messages, plan) if "segments" in plan else _read_remote(run, messages, plan)
    return _without_known(run, messages, rejects, state, batch)


def _read_segments(run: Run, messages: Table, plan: Plan) -> ReadBatch:
    """Stage the rows of the segments in *plan*."""
    found = [segment for saved in plan["segments"] if (segment := segments.reload(saved)) is not None]
    covers = spans.union([[segment.first, segment.last] for segment in found])
    folder = messages.folder()
    bad = folder / "rejects"
    count = segments.write_records(run.spark, found, plan["gateway"], folder, bad)
    staged, keys = finished(folder), [segment.key for segment in found]
    if not count:
        return ReadBatch(plan["gateway"], covers, keys, staged, None, staged.rows)
    rejects = run.spark.read.schema(REJECTS.schema).parquet(escape_glob(bad))
    return ReadBatch(plan["gateway"], covers, keys, staged, rejects, staged.rows + count, (bad,))


def _read_remote(run: Run, messages: Table, plan: Plan) -> ReadBatch:
    """Stage the rows of the records in *plan*, requested from a gateway."""
    source = run.options.source
    assert isinstance(source, HttpSource)
    rows = remote.read_rows(run.spark, source, plan)
    seen = Observation()
    with remote.raise_worker_errors():
        staged = messages.stage(rows.observe(seen, F.count("reason").alias("bad")).where("reason is null"))
    count, covers = seen.get["bad"], [[plan["after"] + 1, plan["until"]]]
    rejects = remote.select_rejects(rows) if count else None
    return ReadBatch(plan["gateway"], covers, [], staged, rejects, staged.rows + count)


def _without_known(run: Run, messages: Table, rejects: Table, state: TableState, batch: ReadBatch) -> ReadBatch:
    """Remove the records that the table has already: those of a segment that was read before, in whole or in part.

    A segment is read again if more is known of its end, so its rejects may be in their table too.
    """
    both = spans.overlap(batch.covers, state.spans.get(batch.gateway, []))
    if not both:
        return batch
    if batch.rejects is not None:
        there = rejects.frame(run.spark).select("file", "line")
        batch = batch._replace(rejects=batch.rejects.join(there, ["file", "line"], "left_anti"))
    if not batch.staged.rows:
        return batch
    mine = F.col("gateway_id") == batch.gateway
    old = messages.frame(run.spark, messages.holding({batch.gateway: both}))
    known = old.where(mine).select("seq", F.col("crc").alias("known"))
    rows = run.spark.read.schema(MESSAGES.schema).parquet(escape_glob(batch.staged.path))
    joined = rows.join(known, "seq", "left")
    staged = messages.stage(joined.where("known is null"))
    other = joined.where("known is not null and known != crc").select(
        F.lit(batch.gateway).alias("file"),
        F.col("seq").alias("line"),
        F.format_string(CONFLICT_REASON, "seq").alias("reason"),
        F.lit("").alias("raw"),
    )
    found = batch.rejects
    if not other.isEmpty():
        found = other if found is None else found.unionByName(other)
    return batch._replace(staged=staged, rejects=found, left=(batch.staged.path,))


def _add_rejects(table: Table, batch: ReadBatch, number: int, plan: Plan) -> int:
    """Add the rejects of *batch*, the *number*-th, unless an attempt that was cut off has; return their number."""
    state = table.state()
    added = state.added if state.batch == number else 0
    if state.batch < number and batch.rejects is not None:
        with remote.raise_worker_errors():
            staged = table.stage(batch.rejects.select(*REJECTS.schema.fieldNames()))
        if staged.rows:
            added = table.append(staged, replace(state, batch=number, plan=plan)).added
    for folder in batch.left:
        remove_folder(folder)
    return added
