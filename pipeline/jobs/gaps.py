"""What is missing in the chains of stream messages: `audit/gaps`."""

from __future__ import annotations

from pipeline.derive import rebuild
from pipeline.run import Run
from pipeline.schemas import GAPS, STREAMR
from pipeline.transforms.gaps import gaps

JOB = "gaps"


def run(run: Run) -> int:
    """Look at all chains again if there are new messages."""
    return rebuild(run, JOB, [STREAMR], {GAPS: lambda run: gaps(run.table(STREAMR).frame(run.spark))})
