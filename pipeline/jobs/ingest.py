"""Turns every record of the log into one row of `bronze/messages`; invalid lines become rows of `bronze/rejects`."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as F

from pipeline import spans
from pipeline.checkpoint import Checkpoint
from pipeline.config import HttpSource, LogSource
from pipeline.errors import PipelineError
from pipeline.run import BatchCounts, Run, record_batch
from pipeline.schemas import MESSAGES, REJECTS
from pipeline.sinks.parquet import Manifest, Staged, Table, finished, part_of, sweep
from pipeline.sources import gateway as remote
from pipeline.sources import segments
from pipeline.sources.segments import Segment

JOB = "ingest"
CONFLICT_REASON = "foreign: the table has a different record {}"

Plan = dict[str, Any]


class ReadResult(NamedTuple):
    """The result of a plan: staged rows, rejects, and the number of lines."""

    staged: Staged
    rejects: list[tuple[Any, ...]]
    lines: int


def run(run: Run) -> int:
    """Ingest all records that are not in the table yet; return the number of batches."""
    done = 0
    with Checkpoint(run.options.warehouse, JOB) as checkpoint:
        messages = run.table(MESSAGES, JOB)
        manifest = messages.manifest()
        checkpoint.verify(manifest)
        manifest.checkpoint = checkpoint.id
        sweep(run.options.warehouse, JOB, run.options.grace_seconds)
        plan = checkpoint.unfinished_plan(manifest)
        while plan is not None or (plan := _next_plan(run, manifest)) is not None:
            checkpoint.begin(manifest.batch + 1, plan)
            counts = _ingest_batch(run, messages, manifest, plan)
            run.say(str(counts))
            plan, done = None, done + 1
    if not done:
        run.say_once(f"{JOB}: nothing to do, there are no new records")
    return done


def _next_plan(run: Run, manifest: Manifest) -> Plan | None:
    """Plan the next batch: new segments of a log, or the next records of a gateway; None if there are none."""
    match run.options.source:
        case LogSource() as source:
            directory = source.directory
            if not directory.is_dir():
                raise PipelineError(f"there is no log in {directory}; name its directory with --source log:DIR")
            gateway = segments.gateway_id(directory)
            if gateway is None:
                return None
            known = {first for part in manifest.parts if part.gateway == gateway for first in part.segments}
            limits = run.options.batch_bytes, run.options.batch_segments
            found = segments.find_new(directory, known, *limits, covered=_covered(manifest, gateway))
            return {"gateway": gateway, "segments": [segment.dump() for segment in found]} if found else None
        case HttpSource() as source:
            return remote.plan(source, lambda gateway: _covered(manifest, gateway))
    raise PipelineError("ingest needs a source: --source log:DIR or http:URL")


def _ingest_batch(run: Run, messages: Table, manifest: Manifest, plan: Plan) -> BatchCounts:
    """Carry out *plan*; the same plan always gives the same part."""
    began = time.monotonic()
    gateway = plan["gateway"]
    counts = BatchCounts(JOB, manifest.batch + 1)
    if "segments" in plan:
        found = [segment for told in plan["segments"] if (segment := segments.reload(told)) is not None]
        covers = spans.union([[segment.first, segment.last] for segment in found])
        read = _read_segments(run, messages, found, gateway)
        firsts = [segment.key for segment in found]
    else:
        covers = [[plan["after"] + 1, plan["until"]]]
        read = _read_remote(run, messages, plan)
        firsts = []
    read = _without_known(run, messages, manifest, read, gateway, covers)
    counts.first, counts.last = (covers[0][0], covers[-1][1]) if covers else (0, 0)
    counts.rows_in, counts.rows_out, counts.rejected = read.lines, read.staged.rows, len(read.rejects)
    name = f"{gateway}-{counts.first:020d}-{counts.last:020d}"
    _put_rejects(run, name, read.rejects)
    record_batch(run, counts, began)
    manifest.batch += 1
    part = part_of(name, read.staged, spans={gateway: covers}, segments=firsts, gateway=gateway)
    messages.append(read.staged, part, manifest)
    counts.seconds = time.monotonic() - began
    return counts


def _read_segments(run: Run, messages: Table, found: list[Segment], gateway: str) -> ReadResult:
    """Stage the rows of the segments *found*."""
    folder = messages.staging()
    rejects = segments.write_records(run.spark, found, gateway, folder)
    staged = finished(folder)
    return ReadResult(staged, rejects, staged.rows + len(rejects))


def _read_remote(run: Run, messages: Table, plan: Plan) -> ReadResult:
    """Stage the rows of the records in *plan*, requested from a gateway."""
    source = run.options.source
    assert isinstance(source, HttpSource)
    rows = remote.rows(run.spark, source, plan)
    seen = Observation()
    staged = messages.stage(rows.observe(seen, F.count("reason").alias("bad")).where("reason is null"))
    rejects = remote.rejects(rows) if seen.get["bad"] else []
    return ReadResult(staged, rejects, staged.rows + len(rejects))


def _without_known(
    run: Run, messages: Table, manifest: Manifest, read: ReadResult, gateway: str, covers: spans.Spans
) -> ReadResult:
    """Remove the records that the table has already: those of a segment that was read before, in whole or in part."""
    both = spans.overlap(covers, _covered(manifest, gateway))
    if not both:
        return read
    parts = [part for part in manifest.parts if spans.overlap(part.spans.get(gateway, []), both)]
    mine = F.col("gateway_id") == gateway
    known = messages.frame(run.spark, parts).where(mine).select("seq", F.col("crc").alias("known"))
    rows = run.spark.read.schema(MESSAGES.schema).parquet(str(read.staged.path)) if read.staged.rows else None
    if rows is None:
        return read
    joined = rows.join(known, "seq", "left")
    conflicts = joined.where("known is not null and known != crc").select("seq").collect()
    staged = messages.stage(joined.where("known is null"))
    messages.discard(read.staged)
    more = [(gateway, row.seq, CONFLICT_REASON.format(row.seq), "") for row in conflicts]
    return ReadResult(staged, [*read.rejects, *more], read.lines)


def _covered(manifest: Manifest, gateway: str) -> spans.Spans:
    return spans.union(*(part.spans.get(gateway, []) for part in manifest.parts))


def _put_rejects(run: Run, name: str, rejects: list[tuple[Any, ...]]) -> None:
    """Write *rejects*, replacing those of an unfinished attempt."""
    table = run.table(REJECTS, JOB)
    manifest = table.manifest()
    if rejects or any(part.name == f"batch={name}" for part in manifest.parts):
        staged = table.stage_rows(rejects)
        table.append(staged, part_of(name, staged), manifest)
