"""The context of a job: Spark's session, the options, the tables, and the output for progress messages."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .config import Options
from .errors import DamagedWarehouse
from .schemas import BATCHES, TableSpec
from .sinks.delta import Table
from .sinks.state import TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def to_terminal(text: str) -> None:
    """Write a line of progress to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the pipeline."""

    spark: SparkSession
    options: Options
    say: Callable[[str], None] = field(default=to_terminal)

    def say_once(self, text: str) -> None:
        """Say *text* unless the job goes on until it is stopped, and would say it again and again."""
        if not self.options.follow:
            self.say(text)

    def table(self, spec: TableSpec, job: str = "") -> Table:
        """Return the table *spec* of the warehouse; *job* names the job that writes it."""
        return Table(self.options.tables, spec, job)


@dataclass(slots=True)
class BatchCounts:
    """The counts of one batch, for `ops/batches` and for the terminal."""

    job: str
    batch: int
    first: int = 0
    last: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rejected: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f", {self.rows_in / self.seconds:,.0f} rows/s" if self.seconds else ""
        bad = f", {self.rejected:,} rejected" if self.rejected else ""
        where = f" records {self.first:,} to {self.last:,}:" if self.last else ""
        return f"{self.job}: batch {self.batch}:{where} {self.rows_out:,} rows{bad}, {self.seconds:.1f} s{rate}"

    def row(self, began: float) -> list[Any]:
        """Return the row of `ops/batches`; *began* is from `time.monotonic`."""
        self.seconds = time.monotonic() - began
        return [*astuple(self)[:-1], round(self.seconds, 3)]


def check_batches(run: Run, job: str, state: TableState) -> None:
    """Raise `DamagedWarehouse` if `ops/batches` has more batches of *job* than its last table, whose state is *state*.

    The row of its last batch is added if the job ended before that.
    """
    recorded = complete_batches(run, job, state)
    if recorded > state.batch:
        raise DamagedWarehouse(
            f"{BATCHES.name} has {recorded} batches of {job}, and its tables have {state.batch}: another run would"
            " write them again or leave them out. Put the tables back that are missing; or remove all tables of the"
            f" job and {BATCHES.name}, and it begins again"
        )


def complete_batches(run: Run, job: str, state: TableState) -> int:
    """Add the last batch of *job*, which *state* has, to `ops/batches` if the job ended before; return their number."""
    table = run.table(BATCHES, job)
    with locked(run, table.spec):
        recorded = table.batch_of(job)
    if recorded < state.batch:
        record_batch(run, job, state)
    return max(recorded, state.batch)


def record_batch(run: Run, job: str, state: TableState) -> None:
    """Write the counts in *state*, that of the last table of *job*, to `ops/batches`."""
    if state.counts is None:
        return
    table = run.table(BATCHES, job)
    with locked(run, table.spec):
        staged = table.stage_rows([tuple(state.counts)])
        there = table.state()
        table.append(staged, replace(there, batch=there.batch + 1), state.batch)


@contextmanager
def locked(run: Run, spec: TableSpec) -> Iterator[None]:
    """Lock the table *spec* against other processes of this machine, since several jobs write it."""
    folder = run.options.warehouse / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "_lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
