"""Finds the place of every Arbor node in the forest: `gold/forest`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.derive import rebuild
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, FOREST, MESSAGES
from pipeline.transforms.forest import forest, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB = "forest"


def run(run: Run) -> int:
    """Rebuild the table if there are new nodes; return 1 if so, else 0."""
    return rebuild(run, JOB, [ARBOR_NODES, MESSAGES], {FOREST: _forest})


def _forest(run: Run) -> DataFrame:
    nodes = run.table(ARBOR_NODES).frame(run.spark)
    return forest(nodes, shown(run.table(MESSAGES).frame(run.spark)))
