"""Finds what is missing in the chains of stream messages: `audit/gaps`."""

from __future__ import annotations

from pipeline.derive import rebuild
from pipeline.run import Run
from pipeline.schemas import GAPS, STREAMR
from pipeline.transforms.gaps import gaps

JOB = "gaps"


def run(run: Run) -> int:
    """Examine all chains again if there are new messages; return 1 if so, else 0."""
    return rebuild(run, JOB, [STREAMR], {GAPS: lambda run: gaps(run.table(STREAMR).frame(run.spark))})
