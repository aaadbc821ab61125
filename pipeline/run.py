"""The context of a job: Spark's session, the options, the tables, and the output for progress messages."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .config import Options
from .schemas import BATCHES, TableSpec
from .sinks.parquet import Table, part_of

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
        return Table(self.options.warehouse, spec, job)


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


def record_batch(run: Run, counts: BatchCounts, began: float) -> None:
    """Write *counts* to `ops/batches`, replacing those of an unfinished attempt; *began* is from `time.monotonic`."""
    table = run.table(BATCHES, counts.job)
    seconds = round(time.monotonic() - began, 3)
    row = (
        counts.job,
        counts.batch,
        counts.first,
        counts.last,
        counts.rows_in,
        counts.rows_out,
        counts.rejected,
        seconds,
    )
    with locked(table):
        name = f"{counts.job}-{counts.batch:012d}"
        staged = table.stage_rows([row])
        table.append(staged, part_of(name, staged), table.manifest())


@contextmanager
def locked(table: Table) -> Iterator[None]:
    """Lock *table* against other processes, since several jobs write it."""
    table.path.mkdir(parents=True, exist_ok=True)
    with (table.path / "_lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
