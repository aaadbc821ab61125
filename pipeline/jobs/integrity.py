"""Verifies ids and signatures: `audit/integrity`. Every record is verified once."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipeline import codecs, spans
from pipeline.derive import update
from pipeline.locks import JobLock
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, INTEGRITY, MESSAGES
from pipeline.sinks.state import SpansByGateway
from pipeline.transforms import integrity

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

JOB = "integrity"
RECORD = ("gateway_id", "log_seq")
AUTHORS = "verified with the authors in"  # the note of the table: the sequences whose identities are known


def run(run: Run) -> int:
    """Verify every decoded record that has not been verified yet; return the number of batches."""
    done = update(run, JOB, {INTEGRITY: _verdicts}, after=[ARBOR_NODES])
    _verify_late_authors(run)
    return done


def _verdicts(run: Run, rows: DataFrame) -> DataFrame:
    now = _now()
    return integrity.streamr(rows, now).unionByName(integrity.arbor(rows, _identities(run), now))


def _verify_late_authors(run: Run) -> None:
    """Verify the nodes whose author's identity was logged after them; only files that have such nodes are rewritten."""
    with JobLock(run.options.warehouse, JOB):
        table, nodes = run.table(INTEGRITY, JOB), run.table(ARBOR_NODES)
        old, there = table.state(), nodes.state().spans
        noted = old.notes.get(AUTHORS)
        known: SpansByGateway = noted if isinstance(noted, dict) else {}
        new = {
            gateway: left for gateway, ranges in there.items() if (left := spans.minus(ranges, known.get(gateway, [])))
        }
        if not old.rows or not new:
            return
        state = replace(old, notes=old.notes | {AUTHORS: there})
        late = _identities(run, nodes.holding(new, "log_seq")).where(_between(new, "log_seq")).select("node_id")
        again = _waiting_for(table.frame(run.spark), late) if not late.isEmpty() else None
        places = [] if again is None else _places(again)
        if again is None or not places:
            table.note(state)
            return
        messages, bounds = run.table(MESSAGES), {gateway: [[first, last]] for gateway, first, last, _ in places}
        logged = messages.frame(run.spark, messages.holding(bounds)).withColumn("log_seq", F.col("seq"))
        rows = logged.join(again, list(RECORD), "left_semi").drop("log_seq")
        # What retention has removed since keeps its verdict.
        found = integrity.arbor(rows, _identities(run), _now()).where(F.col("check") == "openpgp").persist()
        files = {file for *_, held in places for file in held}
        names = [name for name in table.names() if name.rpartition("/")[2] in files]
        others = table.frame(run.spark, names).join(found.select(*RECORD, "check"), [*RECORD, "check"], "left_anti")
        table.replace(table.stage(others.unionByName(found)), state, names)
        count = found.where(F.col("verdict") != codecs.UNVERIFIABLE).count()
        found.unpersist()
        run.say(f"{JOB}: {count:,} signatures could be checked now that their authors are known")


def _waiting_for(verdicts: DataFrame, authors: DataFrame) -> DataFrame:
    """Return the record and the file of each of *verdicts* that waits for one of *authors*.

    A verdict of an older version does not say whom it waits for, so it may be for them.
    """
    waiting = verdicts.where((F.col("check") == "openpgp") & (F.col("reason") == codecs.NO_AUTHOR)).select(
        *RECORD, F.col("publisher").alias("node_id"), F.col("_metadata.file_name").alias("file")
    )
    unknown = waiting.where("node_id is null")
    return waiting.join(authors, "node_id", "left_semi").unionByName(unknown)


def _places(records: DataFrame) -> list[tuple[str, int, int, list[str]]]:
    """Return for each gateway the first and the last sequence of *records*, and the files that have them."""
    ends = F.min("log_seq"), F.max("log_seq"), F.collect_set("file")
    return [tuple(row) for row in records.groupBy("gateway_id").agg(*ends).collect()]


def _between(ranges: SpansByGateway, seq: str) -> Column:
    """Return the condition that a record is between the first and the last of *ranges*."""
    each = ((F.col("gateway_id") == name) & F.col(seq).between(s[0][0], s[-1][1]) for name, s in ranges.items())
    return reduce(or_, each)


def _identities(run: Run, names: list[str] | None = None) -> DataFrame:
    nodes = run.table(ARBOR_NODES).frame(run.spark, names).where("type = 0 and fault is null")
    return nodes.select("node_id", "raw", "gateway_id", "log_seq")


def _now() -> int:
    return time.time_ns() // 1_000_000
