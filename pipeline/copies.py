"""Keeps one row for each key in the silver tables, whose messages the log may have twice.

The key says what a copy is: the log can have a message again (an import, two gateways in one warehouse) and in another
spelling (a publisher's address in other letters, another version of the protocol). The row that was decoded first
stays; within a batch it is the one that was logged first. `audit/integrity` has a verdict for each copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from .places import escape_glob
from .run import Run
from .schemas import ARBOR_NODES, STREAMR, TableSpec
from .sinks.delta import Table
from .sinks.files import Staged
from .sinks.state import TableState
from .transforms.copies import copied, without_copies, without_known

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The tables with one row for each key, and the column of its author's time, which all copies of a row share.
TIMES: Final[dict[TableSpec, str]] = {STREAMR: "ts", ARBOR_NODES: "created"}
ONCE: Final = "one row for each key"  # the note of a table that has no copies


def add_once(run: Run, table: Table, staged: Staged) -> Staged:
    """Return *staged* without copies and without rows that *table* has already."""
    if table.spec not in TIMES or not staged.rows:
        return staged
    rows = run.spark.read.schema(table.spec.schema).parquet(escape_glob(staged.path))
    known = _of_the_same_time(rows, table.frame(run.spark), TIMES[table.spec])
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


def _of_the_same_time(rows: DataFrame, known: DataFrame, time: str) -> DataFrame:
    """Return the rows of *known* that can be copies of *rows*; Parquet's statistics leave out most files."""
    first, last = rows.agg(F.min(time), F.max(time)).collect()[0]
    return known.where(F.col(time).between(first, last)) if first is not None else known.limit(0)
