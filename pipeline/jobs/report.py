"""Writes the report: one HTML page, replaced atomically."""

from __future__ import annotations

import time
import uuid

from pipeline.report.data import gather
from pipeline.report.page import page
from pipeline.run import Run

JOB = "report"
FILE = "report.html"


def run(run: Run) -> int:
    """Write the report, by default into the warehouse; return 0, because no other job depends on it."""
    began = time.monotonic()
    path = run.options.output or run.options.warehouse / FILE
    text = page(gather(run), time.time_ns() // 1_000_000)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(text)
    temporary.rename(path)
    run.say(f"{JOB}: {path}, {time.monotonic() - began:.1f} s")
    return 0
