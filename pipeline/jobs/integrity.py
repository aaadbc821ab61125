"""Verifies ids and signatures: `audit/integrity`. Every record is verified once."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipeline import codecs
from pipeline.derive import state_of, update
from pipeline.locks import JobLock
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, INTEGRITY, MESSAGES
from pipeline.transforms import integrity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB = "integrity"
RECORD = ("gateway_id", "log_seq")
AUTHORS = "verified with the authors in"  # the note of the table: the state of `silver/arbor_nodes`


def run(run: Run) -> int:
    """Verify every decoded record that has not been verified yet; return the number of batches."""
    done = update(run, JOB, {INTEGRITY: _verdicts}, after=[ARBOR_NODES])
    _verify_late_authors(run)
    return done


def _verdicts(run: Run, rows: DataFrame) -> DataFrame:
    now = _now()
    return integrity.streamr(rows, now).unionByName(integrity.arbor(rows, _identities(run), now))


def _verify_late_authors(run: Run) -> None:
    """Verify the nodes whose author's identity was logged after them."""
    with JobLock(run.options.warehouse, JOB):
        table, nodes = run.table(INTEGRITY, JOB), run.table(ARBOR_NODES)
        old, authors = table.state(), state_of(nodes.state())
        if not old.rows or old.notes.get(AUTHORS) == authors:
            return
        state = replace(old, notes=old.notes | {AUTHORS: authors})
        verdicts = table.frame(run.spark)
        waiting = verdicts.where((F.col("check") == "openpgp") & (F.col("reason") == codecs.NO_AUTHOR)).select(*RECORD)
        held = _identities(run).select(F.col("node_id").alias("author"))
        known = nodes.frame(run.spark).join(held, "author", "left_semi")
        again = waiting.join(known.select(*RECORD), list(RECORD), "left_semi").withColumn("check", F.lit("openpgp"))
        count = again.count()
        if not count:
            table.note(state)
            return
        logged = run.table(MESSAGES).frame(run.spark).withColumn("log_seq", F.col("seq"))
        rows = logged.join(F.broadcast(again), list(RECORD), "left_semi").drop("log_seq")
        new = integrity.arbor(rows, _identities(run), _now()).where(F.col("check") == "openpgp")
        others = verdicts.join(F.broadcast(again), [*RECORD, "check"], "left_anti")
        table.replace(table.stage(others.unionByName(new)), state)
        run.say(f"{JOB}: {count:,} signatures could be checked now that their authors are known")


def _identities(run: Run) -> DataFrame:
    return run.table(ARBOR_NODES).frame(run.spark).where("type = 0 and fault is null").select("node_id", "raw")


def _now() -> int:
    return time.time_ns() // 1_000_000
