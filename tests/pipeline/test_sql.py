"""`trellis pipeline sql` prints rows for people and for programs, and only reads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from logging.handlers import BufferingHandler
from typing import Any

import pytest
from pyspark.logger import PySparkLogger

from pipeline.catalog import register
from pipeline.errors import PipelineError
from pipeline.jobs import SQL, job
from pipeline.jobs.sql import LOGGERS
from pipeline.run import Run
from pipeline.schemas import MESSAGES, TABLES
from pipeline.sinks.delta import Table


def answer(run: Run, capsys: pytest.CaptureFixture[str], query: str, **options: Any) -> str:
    """What is printed for *query*."""
    job(SQL)(replace(run, options=replace(run.options, query=query, **options)))
    return capsys.readouterr().out


def test_every_table_has_a_view_with_its_rows(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = register(whole.spark, whole.options.warehouse)
    assert len(set(names)) == len(TABLES)
    counts = " UNION ALL ".join(f"SELECT '{name}' AS name, count(*) AS n FROM {name}" for name in names)
    told = [json.loads(line) for line in answer(whole, capsys, counts, as_json=True).splitlines()]
    assert {row["name"]: row["n"] for row in told} == {
        spec.name.rpartition("/")[2]: Table(whole.options.warehouse, spec).state().rows for spec in TABLES
    }


def test_joins_and_groups_equal_plain_python(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    query = """SELECT m.channel, i.verdict, count(*) AS n FROM integrity i
        JOIN messages m ON m.gateway_id = i.gateway_id AND m.seq = i.log_seq GROUP BY ALL"""
    told = [json.loads(line) for line in answer(whole, capsys, query, as_json=True).splitlines()]
    channels = {row.seq: row.channel for row in whole.table(MESSAGES).frame(whole.spark).collect()}
    verdicts = whole.spark.table("integrity").collect()
    expected = Counter((channels[row.log_seq], row.verdict) for row in verdicts)
    assert {(row["channel"], row["verdict"]): row["n"] for row in told} == expected


def test_people_see_columns_and_nothing_that_controls_a_terminal(
    whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    query = r"SELECT 1 AS a, 'x\u001b[2J\ny' AS b, null AS b, array(1, 2) AS c, repeat('z', 99) AS d"
    assert answer(whole, capsys, query).splitlines() == [
        f"a  b{' ' * 12}b  c       d",
        rf"1  x\x1b[2J\ny  -  [1, 2]  {'z' * 80}...",
    ]
    long = answer(whole, capsys, "SELECT id FROM range(1001)").splitlines()
    assert (len(long), long[-1]) == (1002, "... and more than these 1,000 rows; --json prints all")
    assert "more than" not in answer(whole, capsys, "SELECT id FROM range(1000)")


def test_programs_see_every_row_and_every_column(whole: Run, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT id, timestamp_millis(0) AS at, null AS nothing FROM range(1500)"
    told = [json.loads(line) for line in answer(whole, capsys, query, as_json=True).splitlines()]
    assert told == [{"id": n, "at": "1970-01-01T00:00:00.000Z", "nothing": None} for n in range(1500)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT nothing FROM messages", "UNRESOLVED_COLUMN"),
        ("SELECT raise_error('here')", "here"),
        ("INSERT INTO batches SELECT * FROM batches", "Can't insert"),
        ("INSERT OVERWRITE messages SELECT * FROM messages", "Can't insert"),
    ],
)
def test_a_faulty_query_is_one_line_and_changes_nothing(whole: Run, query: str, said: str) -> None:
    shown = BufferingHandler(1000)
    before = {path: path.stat().st_mtime_ns for path in whole.options.warehouse.rglob("*")}
    for name in LOGGERS:
        PySparkLogger.getLogger(name).addHandler(shown)
    for as_json in (False, True):
        with pytest.raises(PipelineError, match=said) as failed:
            job(SQL)(replace(whole, options=replace(whole.options, query=query, as_json=as_json)))
        assert "\n" not in str(failed.value)
        assert "org.apache" not in str(failed.value)
    assert shown.buffer == [], "nothing else is on the terminal"
    assert {path: path.stat().st_mtime_ns for path in whole.options.warehouse.rglob("*")} == before
