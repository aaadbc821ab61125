"""Keeps one row for each key in the silver tables, whose messages the log may have twice.

The key says what a copy is: the log can have a message again (an import, two gateways in one warehouse) and in another
spelling (a publisher's address in other letters, another version of the protocol). The row that was decoded first
stays; within a batch it is the one that was logged first. `audit/integrity` has a verdict for each copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from .places import escape_glob, filesystem
from .run import Run
from .schemas import ARBOR_NODES, STREAMR, TableSpec
from .sinks.delta import Table
from .sinks.files import Staged
from .sinks.state import TableState
from .transforms.copies import copied, without_copies, without_known

if TYPE_CHECKING:
    from pyspark.sql import Column

# The tables with one row for each key, and the column of its author's time, which all copies of a row share.
TIMES: Final[dict[TableSpec, str]] = {STREAMR: "ts", ARBOR_NODES: "created"}
HOUR: Final = 3_600_000  # ms
PERIODS: Final = 32  # in which copies of a batch are looked for
MAX_LONG: Final = (1 << 63) - 1
ONCE: Final = "one row for each key"  # the note of a table that has no copies


def add_once(run: Run, table: Table, staged: Staged) -> Staged:
    """Return *staged* without copies and without rows that *table* has already."""
    if table.spec not in TIMES or not staged.rows:
        return staged
    rows = run.spark.read.schema(table.spec.schema).parquet(escape_glob(staged.path))
    times = TIMES[table.spec]
    known = table.frame(run.spark).where(_in(times, periods(_hours(staged, times))))
    if copied(rows, known, table.spec.key).isEmpty():
        return staged
    fewer = table.stage(without_known(without_copies(rows, table.spec.key), known, table.spec.key))
    table.discard(staged)
    return fewer


def remove_old_copies(run: Run, table: Table, state: TableState) -> TableState:
    """Remove the copies from a *table* that an older version filled; return its state."""
    if table.spec not in TIMES or ONCE in state.notes:
        return state
    cleaned = replace(state, notes=state.notes | {ONCE: True})
    if not state.rows:
        return cleaned
    staged = table.stage(without_copies(table.frame(run.spark), table.spec.key))
    run.say(f"{table.spec.name}: {state.rows - staged.rows:,} copies removed")
    return table.replace(staged, cleaned)


def periods(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Return at most `PERIODS` periods, each from one hour to another, that have all of *hours*.

    They leave out the longest pauses between these. A publisher that says 0 beside the present time therefore does not
    have the whole table searched, but only what has one of the two, by the statistics of files and of their pages.
    """
    ordered = sorted(set(hours))
    pauses = sorted(range(1, len(ordered)), key=lambda place: ordered[place - 1] - ordered[place])[: PERIODS - 1]
    cuts = sorted(place for place in pauses if ordered[place] > ordered[place - 1] + 1)
    return [
        (ordered[begin], ordered[end - 1])
        for begin, end in zip([0, *cuts], [*cuts, len(ordered)], strict=True)
        if ordered
    ]


def _hours(staged: Staged, time: str) -> set[int]:
    """Return the hours of the rows that have a key, at most some millions (`derive.BATCH_RECORDS`)."""
    found: set[int] = set()
    for file in staged.files:
        system, path = filesystem(staged.path.parent / file.name)
        column = pq.read_table(path, columns=[time], filesystem=system)[time]
        found.update(pc.unique(pc.divide(column.drop_null(), HOUR)).to_pylist())
    return found


def _in(time: str, periods: Sequence[tuple[int, int]]) -> Column:
    """Return the condition that *time* is in one of *periods*."""
    each = (F.col(time).between(first * HOUR, min(last * HOUR + HOUR - 1, MAX_LONG)) for first, last in periods)
    return reduce(or_, each, F.lit(False))
