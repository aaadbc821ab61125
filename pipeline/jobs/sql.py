"""Prints what a query of the tables finds."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F

from pipeline.catalog import register
from pipeline.errors import PipelineError
from pipeline.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN: Final = 1000  # rows of a table for people
WIDEST: Final = 80  # characters of a column for people
# Spark's Python writes the trace of a faulty query, 8 kB of it, by these before anybody catches the exception.
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]+: (.+)", re.MULTILINE)


def run(run: Run) -> int:
    """Print the rows of the query on standard output; return 0, because no other job depends on it."""
    assert run.options.query is not None
    register(run.spark, run.options.tables)
    for name in LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    try:
        found = run.spark.sql(run.options.query)
        if run.options.as_json:
            for line in _lines(found, found.columns):
                sys.stdout.write(f"{line}\n")
        elif found.columns:
            _print_table(found)
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError(f"the query failed: {_first_line(str(error))}") from None
    sys.stdout.flush()
    return 0


def _lines(frame: DataFrame, names: Sequence[str]) -> Iterator[str]:
    """Yield each row as a JSON object, whose members are called *names*; one partition is in memory at a time."""
    row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return (line for (line,) in frame.toDF(*names).select(row).toLocalIterator())


def _print_table(frame: DataFrame) -> None:
    places = [str(place) for place in range(len(frame.columns))]  # two columns may have one name
    found = [json.loads(line) for line in islice(_lines(frame.limit(SHOWN + 1), places), SHOWN + 1)]
    rows = [frame.columns, *([_cell(row[place]) for place in places] for row in found[:SHOWN])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")
    if len(found) > SHOWN:
        sys.stdout.write(f"... and more than these {SHOWN:,} rows; --json prints all\n")


def _cell(value: Any) -> str:
    """Return *value* for people; what a peer sent must not control a terminal."""
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:WIDEST])
    return shown if len(text) <= WIDEST else f"{shown}..."


def _first_line(error: str) -> str:
    """Return the root cause in Spark's *error*, which it names last; without one, its first line."""
    causes = _CAUSE.findall(error)
    return str(causes[-1]) if causes else next((line for line in error.splitlines() if line.strip()), "no reason given")
