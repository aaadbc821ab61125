"""Tables derived from other tables: updated incrementally, or rebuilt as a whole.

The state of an incremental table says which sequences of `bronze/messages` are in it, so each record is processed once,
even if the files that hold it were merged since. Tables that are filled together follow the first of them, whose state
has the plan of the batch. A rebuilt table records the state of its sources, and is left alone while they have not
changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from . import spans
from .copies import add_once, remove_old_copies
from .errors import DamagedWarehouse
from .locks import JobLock
from .run import BatchCounts, Run, check_batches, complete_batches, record_batch
from .schemas import MESSAGES, TableSpec
from .sinks.delta import Table
from .sinks.files import Staged
from .sinks.state import SpansByGateway, TableState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_RECORDS = 2_000_000  # records that become one batch
BATCH_SPANS = 100  # spans of records that become one batch: each is a condition, and Spark takes them apart recursively
STAGED_AT_ONCE = 2  # tables of one job, so that no core is idle while Spark plans one of them
SOURCE_STATE = "made of"  # the note of a rebuilt table: `state_of` its sources

Transform = Callable[[Run, "DataFrame"], "DataFrame"]


def update(run: Run, job: str, tables: Mapping[TableSpec, Transform], after: Sequence[TableSpec] = ()) -> int:
    """Add to each of *tables* what its function makes of the records that are not in it; return the number of batches.

    Records that the incremental tables *after* do not have yet are left for later.
    """
    done = 0
    with JobLock(run.options.warehouse, job):
        outputs, states = _open(run, job, tables)
        states = {spec: remove_old_copies(run, outputs[spec], states[spec]) for spec in tables}
        leader, *_, last = (*tables, *tables)
        plan = _unfinished_plan(job, list(states.values()))
        check_batches(run, job, states[last])
        while plan is not None or (plan := _next_plan(run, states[last], after)):
            began, batch = time.monotonic(), states[last].batch + 1
            rows = _records(run, plan)
            counts = BatchCounts(job, batch, *_seq_range(plan), rows_in=_record_count(plan["todo"]))
            for spec, function in tables.items():
                if states[spec].batch < batch:  # else the table was finished before the attempt ended
                    staged = add_once(run, outputs[spec], outputs[spec].stage(function(run, rows)))
                    state = replace(states[spec], batch=batch, spans=states[spec].covering(plan["todo"]))
                    if spec is leader:
                        state = replace(state, plan=plan)
                    if spec is last:
                        counts.rows_out += staged.rows
                        state = replace(state, counts=counts.row(began))
                    states[spec] = outputs[spec].append(staged, state)
                if spec is not last:
                    counts.rows_out += states[spec].added
            record_batch(run, job, states[last])
            run.say(str(counts))
            plan, done = None, done + 1
    if not done:
        run.say_once(f"{job}: nothing to do, {_record_count(states[last].spans):,} records were processed before")
    return done


def rebuild(
    run: Run, job: str, sources: Sequence[TableSpec], tables: Mapping[TableSpec, Callable[[Run], DataFrame]]
) -> int:
    """Rebuild *tables* if one of *sources* has changed since; return 1 if so, else 0."""
    with JobLock(run.options.warehouse, job):
        outputs, states = _open(run, job, tables)
        newest = max(states.values(), key=lambda state: state.batch)
        batch = complete_batches(run, job, newest) + 1  # more than the tables have if they were removed
        source_states = [state_of(run.table(spec).state()) for spec in sources]
        stale = [spec for spec in tables if states[spec].notes.get(SOURCE_STATE) != source_states]
        if not stale:
            run.say_once(f"{job}: nothing to do, its sources have not changed")
            return 0
        began = time.monotonic()
        counts = BatchCounts(job, batch, rows_in=sum(rows for _, rows in source_states))
        pool = ThreadPoolExecutor(STAGED_AT_ONCE)
        try:
            staging = {spec: pool.submit(_stage, run, outputs[spec], tables[spec]) for spec in stale}
            for spec, future in staging.items():
                staged = future.result()
                counts.rows_out += staged.rows
                state = TableState(counts.batch, notes={SOURCE_STATE: source_states}, counts=counts.row(began))
                newest = outputs[spec].replace(staged, state, batch=True)
        finally:
            pool.shutdown(cancel_futures=True)  # after a failure no other table is begun
        record_batch(run, job, newest)
        run.say(str(counts))
        return 1


def _stage(run: Run, output: Table, function: Callable[[Run], DataFrame]) -> Staged:
    return output.stage(function(run))


def _open(
    run: Run, job: str, tables: Iterable[TableSpec]
) -> tuple[dict[TableSpec, Table], dict[TableSpec, TableState]]:
    outputs = {spec: run.table(spec, job) for spec in tables}
    return outputs, {spec: table.state() for spec, table in outputs.items()}


def _unfinished_plan(job: str, states: Sequence[TableState]) -> dict[str, Any] | None:
    """Return the plan of a batch that the first table has and others do not; raise `DamagedWarehouse` if they differ.

    *states* are in the order in which the tables are filled.
    """
    batches = [state.batch for state in states]
    if batches != sorted(batches, reverse=True) or batches[0] > batches[-1] + 1:
        numbers = ", ".join(map(str, batches))
        raise DamagedWarehouse(
            f"the tables of {job} do not belong together, they have {numbers} batches: put back what is missing, or"
            " remove all tables of the job and ops/batches, and it begins again"
        )
    return states[0].plan if batches[0] > batches[-1] else None


def state_of(state: TableState) -> list[int]:
    """Return what changes whenever a table's rows do, and not when its files are merged or a batch adds nothing."""
    return [state.batch if SOURCE_STATE in state.notes else state.changes, state.rows]


def _next_plan(run: Run, state: TableState, after: Sequence[TableSpec]) -> dict[str, Any] | None:
    """Return the records to process next, at most about `BATCH_RECORDS` in `BATCH_SPANS`; None if there are none."""
    have = run.table(MESSAGES).state().spans
    limits = [run.table(spec).state().spans for spec in after]
    left, spans_left = BATCH_RECORDS, BATCH_SPANS
    todo: SpansByGateway = {}
    for gateway, ranges in sorted(have.items()):
        new = spans.minus(ranges, state.spans.get(gateway, []))
        for limit in limits:
            new = spans.overlap(new, limit.get(gateway, []))
        for first, last in new:
            if left > 0 and spans_left > 0:
                todo.setdefault(gateway, []).append([first, min(last, first + left - 1)])
                left -= last - first + 1
                spans_left -= 1
    return {"todo": todo} if todo else None


def _records(run: Run, plan: dict[str, Any]) -> DataFrame:
    """Return the rows of `bronze/messages` that *plan* names, read from only the files that hold them."""
    table, todo = run.table(MESSAGES), plan["todo"]
    rows = table.frame(run.spark, table.holding(todo))
    return rows.where(
        reduce(
            or_,
            (
                (F.col("gateway_id") == gateway) & F.col("seq").between(first, last)
                for gateway, ranges in todo.items()
                for first, last in ranges
            ),
        )
    )


def _seq_range(plan: dict[str, Any]) -> tuple[int, int]:
    ends = [span for ranges in plan["todo"].values() for span in ranges]
    return min(first for first, _ in ends), max(last for _, last in ends)


def _record_count(by_gateway: SpansByGateway) -> int:
    return sum(last - first + 1 for ranges in by_gateway.values() for first, last in ranges)
