"""Whether ids and signatures are what they say: `audit/integrity`. Every record is verified once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pipeline.derive import grow
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, INTEGRITY
from pipeline.transforms import integrity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB = "integrity"


def run(run: Run) -> int:
    """Verify every record that has been decoded and not been verified yet."""
    return grow(run, JOB, {INTEGRITY: _verdicts}, after=[ARBOR_NODES])


def _verdicts(run: Run, rows: DataFrame) -> DataFrame:
    now = time.time_ns() // 1_000_000
    identities = run.table(ARBOR_NODES).frame(run.spark).where("type = 0 and fault is null").select("node_id", "raw")
    return integrity.streamr(rows, now).unionByName(integrity.arbor(rows, identities, now))
