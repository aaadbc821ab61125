"""Merges small files, removes messages that are too old, and deletes files that no recent version of a table names."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import functions as F

from pipeline import spans
from pipeline.locks import JobLock
from pipeline.run import Run, locked
from pipeline.schemas import ARBOR_NODES, BATCHES, MESSAGES, STREAMR, TABLES, TOPIC_PACKETS
from pipeline.sinks.delta import Table
from pipeline.sinks.state import SpansByGateway

JOB: Final = "compact"
# The tables that have what messages say: the column of the record's sequence, and which rows are messages.
REMOVED: Final = {
    MESSAGES: ("seq", "kind = 'message'"),
    STREAMR: ("log_seq", "true"),
    ARBOR_NODES: ("log_seq", "coalesce(type, 2) = 2"),
    TOPIC_PACKETS: ("seq", "true"),
}
VACUUM_FILES: Final = 64  # so many old files are worth two commits while the job is repeated


def run(run: Run) -> int:
    """Compact every table; return the number of tables whose files were merged or whose old messages were removed."""
    changed = 0
    with JobLock(run.options.warehouse, JOB):
        old = _old_messages(run)
        for spec in filter(lambda spec: spec.job, TABLES):
            with JobLock(run.options.warehouse, spec.job):  # only who has it may change the table
                changed += _compact(run, run.table(spec, spec.job), old)
        batches = run.table(BATCHES, JOB)
        with locked(run, BATCHES):
            changed += _compact(run, batches, {})
    return changed


def _compact(run: Run, table: Table, old: SpansByGateway) -> bool:
    began = time.monotonic()
    removed = table.spec in REMOVED and bool(old) and _remove_old(run, table, old)
    before, after = table.compact()
    table.vacuum(run.options.keep_hours, VACUUM_FILES if run.options.follow else 1)
    if not before and not removed:
        return False
    rows, seconds = table.state().rows, time.monotonic() - began
    run.say(f"{JOB}: {table.spec.name}: {before} files became {after}, {rows:,} rows, {seconds:.1f} s")
    return True


def _old_messages(run: Run) -> SpansByGateway:
    """Return the sequences, for each gateway, of the days before those that are kept; times increase with sequences."""
    if run.options.keep_days is None:
        return {}
    oldest = (datetime.now(UTC) - timedelta(days=run.options.keep_days)).date()
    table = run.table(MESSAGES)
    kept = table.frame(run.spark).where(F.col("day") >= F.lit(oldest)).groupBy("gateway_id").agg(F.min("seq"))
    first = dict(map(tuple, kept.collect()))
    spans_by_gateway = {gateway: spans.union(found) for gateway, found in table.state().spans.items()}
    ends = {gateway: first.get(gateway, found[-1][1] + 1) - 1 for gateway, found in spans_by_gateway.items() if found}
    return {gateway: [[0, end]] for gateway, end in ends.items() if end > 0}


def _remove_old(run: Run, table: Table, old: SpansByGateway) -> bool:
    """Remove the messages among the records *old*; return False if there are none."""
    seq, condition = REMOVED[table.spec]
    names = table.holding(old, seq)
    each = ((F.col("gateway_id") == name) & (F.col(seq) <= ranges[-1][1]) for name, ranges in old.items())
    gone = F.expr(condition) & reduce(or_, each)
    rows = table.frame(run.spark, names)
    if not names or rows.where(gone).isEmpty():
        return False
    table.replace(table.stage(rows.where(~F.coalesce(gone, F.lit(False)))), table.state(), names)
    return True
