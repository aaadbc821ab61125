"""Turns every record of the log into one row of `bronze/messages`; invalid lines become rows of `bronze/rejects`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F

from pipeline import spans
from pipeline.config import HttpSource, LogSource
from pipeline.errors import DamagedWarehouse, PipelineError
from pipeline.locks import JobLock
from pipeline.places import escape_glob
from pipeline.run import BatchCounts, Run, check_batches, record_batch
from pipeline.schemas import MESSAGES, REJECTS
from pipeline.sinks.delta import Table
from pipeline.sinks.files import Staged, finished
from pipeline.sinks.state import TableState
from pipeline.sources import gateway as remote
from pipeline.sources import segments
from pipeline.sources.segments import Segment

JOB = "ingest"
CONFLICT_REASON = "foreign: the table has a different record {}"

Plan = dict[str, Any]
Rows = list[tuple[Any, ...]]


class ReadBatch(NamedTuple):
    """What was read for a plan: rows that no commit names yet, rejects, and the number of lines.

    *covers* are the sequences that were read, *segments* the keys of the segments that had them.
    """

    gateway: str
    covers: spans.Spans
    segments: list[int]
    staged: Staged
    rejects: Rows
    lines: int

    def counts(self, number: int) -> BatchCounts:
        """Return the counts of this batch, which is the *number*-th."""
        first, last = (self.covers[0][0], self.covers[-1][1]) if self.covers else (0, 0)
        return BatchCounts(JOB, number, first, last, self.lines, self.staged.rows, len(self.rejects))

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
            began, batch = time.monotonic(), _read(run, messages, state, plan)
            counts = batch.counts(state.batch + 1)
            if batch.rejects and (told := rejects.state()).batch < counts.batch:
                rejects.append(rejects.stage_rows(batch.rejects), replace(told, batch=counts.batch, plan=plan))
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
            return remote.plan(source, lambda gateway: state.spans.get(gateway, []))
    raise PipelineError("ingest needs a source: --source log:DIR or http:URL")


def _read(run: Run, messages: Table, state: TableState, plan: Plan) -> ReadBatch:
    """Read what *plan* names; the same plan always gives the same rows."""
    gateway = plan["gateway"]
    if "segments" in plan:
        found = [segment for told in plan["segments"] if (segment := segments.reload(told)) is not None]
        covers = spans.union([[segment.first, segment.last] for segment in found])
        staged, rejects = _read_segments(run, messages, found, gateway)
        keys = [segment.key for segment in found]
    else:
        covers, keys = [[plan["after"] + 1, plan["until"]]], []
        staged, rejects = _read_remote(run, messages, plan)
    batch = ReadBatch(gateway, covers, keys, staged, rejects, staged.rows + len(rejects))
    return _without_known(run, messages, state, batch)


def _read_segments(run: Run, messages: Table, found: list[Segment], gateway: str) -> tuple[Staged, Rows]:
    """Stage the rows of the segments *found*."""
    folder = messages.folder()
    rejects = segments.write_records(run.spark, found, gateway, folder)
    return finished(folder), rejects


def _read_remote(run: Run, messages: Table, plan: Plan) -> tuple[Staged, Rows]:
    """Stage the rows of the records in *plan*, requested from a gateway."""
    source = run.options.source
    assert isinstance(source, HttpSource)
    rows = remote.rows(run.spark, source, plan)
    seen = Observation()
    staged = messages.stage(rows.observe(seen, F.count("reason").alias("bad")).where("reason is null"))
    return staged, remote.rejects(rows) if seen.get["bad"] else []


def _without_known(run: Run, messages: Table, state: TableState, batch: ReadBatch) -> ReadBatch:
    """Remove the records that the table has already: those of a segment that was read before, in whole or in part."""
    both = spans.overlap(batch.covers, state.spans.get(batch.gateway, []))
    if not both or not batch.staged.rows:
        return batch
    mine = F.col("gateway_id") == batch.gateway
    old = messages.frame(run.spark, messages.holding({batch.gateway: both}))
    known = old.where(mine).select("seq", F.col("crc").alias("known"))
    rows = run.spark.read.schema(MESSAGES.schema).parquet(escape_glob(batch.staged.path))
    joined = rows.join(known, "seq", "left")
    conflicts = joined.where("known is not null and known != crc").select("seq").collect()
    staged = messages.stage(joined.where("known is null"))
    messages.discard(batch.staged)
    more = [(batch.gateway, row.seq, CONFLICT_REASON.format(row.seq), "") for row in conflicts]
    return batch._replace(staged=staged, rejects=[*batch.rejects, *more])
