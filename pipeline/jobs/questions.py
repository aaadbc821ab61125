"""Answers what people often ask: `gold/answers`, `gold/threads`, `gold/storage` and others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pipeline.derive import rebuild
from pipeline.run import Run
from pipeline.schemas import TableSpec
from pipeline.transforms.questions import SOURCES, TABLES, answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB: Final = "questions"


def run(run: Run) -> int:
    """Rebuild the tables if there is something new in what they are made of; return 1 if so, else 0."""
    return rebuild(run, JOB, [*SOURCES.values()], {spec: partial(_answer, spec) for spec in TABLES})


def _answer(spec: TableSpec, run: Run) -> DataFrame:
    return answer(spec, {name: run.table(source).frame(run.spark) for name, source in SOURCES.items()})
