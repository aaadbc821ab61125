"""Writes the report: one HTML page, and its numbers as JSON for the gateway; each file is replaced atomically."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from pipeline.places import Place, put
from pipeline.report.data import gather
from pipeline.report.page import page
from pipeline.report.summary import summary
from pipeline.run import Run

JOB = "report"
FILE = "report.html"
NUMBERS = "report.json"  # where the gateway looks


def run(run: Run) -> int:
    """Write the report, by default into the warehouse; return 0, because no other job depends on it."""
    began = time.monotonic()
    numbers, made = gather(run), time.time_ns() // 1_000_000
    html, numbers_text = page(numbers, made), summary(numbers, made)
    path: Place = run.options.output or run.options.tables / FILE
    _replace(run.options.output or run.options.warehouse / FILE, html)
    _replace(run.options.warehouse / NUMBERS, numbers_text)
    if (objects := run.options.objects) is not None:
        for name, text in ((FILE, html), (NUMBERS, numbers_text)):
            put(objects / name, text.encode())
    run.say(f"{JOB}: {path}, {time.monotonic() - began:.1f} s")
    return 0


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(text)
    temporary.rename(path)
