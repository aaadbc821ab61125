"""Where every Arbor node stands: `gold/forest`."""

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
    """Draw the forest again if it has grown."""
    return rebuild(run, JOB, [ARBOR_NODES, MESSAGES], {FOREST: _forest})


def _forest(run: Run) -> DataFrame:
    nodes = run.table(ARBOR_NODES).frame(run.spark)
    return forest(nodes, shown(run.table(MESSAGES).frame(run.spark)))
