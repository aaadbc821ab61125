"""Merges small files, removes messages that are too old, and deletes files that no recent version of a table names."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

from pipeline.locks import JobLock
from pipeline.run import BatchCounts, Run, locked
from pipeline.schemas import BATCHES, MESSAGES, TABLES
from pipeline.sinks.delta import Table

JOB: Final = "compact"
VACUUM_FILES: Final = 64  # so many old files are worth two commits while the job is repeated


def run(run: Run) -> int:
    """Compact every table; return the number of tables whose files were merged or whose old messages were removed."""
    changed = 0
    with JobLock(run.options.warehouse, JOB):
        for spec in filter(lambda spec: spec.job, TABLES):
            with JobLock(run.options.warehouse, spec.job):  # only who has it may change the table
                changed += _compact(run, run.table(spec, spec.job))
        batches = run.table(BATCHES, JOB)
        with locked(run, BATCHES):
            changed += _compact(run, batches)
    return changed


def _compact(run: Run, table: Table) -> bool:
    began = time.monotonic()
    removed = table.spec is MESSAGES and run.options.keep_days is not None and _remove_old(run, table)
    before, after = table.compact()
    table.vacuum(run.options.keep_hours, VACUUM_FILES if run.options.follow else 1)
    if not before and not removed:
        return False
    counts = BatchCounts(JOB, 0, rows_out=table.state().rows, seconds=time.monotonic() - began)
    run.say(f"{counts} ({table.spec.name}: {before} files became {after})")
    return True


def _remove_old(run: Run, table: Table) -> bool:
    """Remove the messages of the days before those that are kept; return False if there are none."""
    assert run.options.keep_days is not None
    oldest = (datetime.now(UTC) - timedelta(days=run.options.keep_days)).date()
    names = [name for name, first in table.first_days() if first is None or first < oldest]
    rows = table.frame(run.spark, names)
    if not names or rows.where(f"kind = 'message' and day < date'{oldest}'").isEmpty():
        return False
    kept = rows.where(f"kind != 'message' or day >= date'{oldest}'")
    table.replace(table.stage(kept), table.state(), names)
    return True
