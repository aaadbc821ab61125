"""Counts what is wrong for each publisher (`gold/publishers`), and publishes alerts on the bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from pipeline.derive import rebuild
from pipeline.locks import JobLock
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, GAPS, INTEGRITY, PUBLISHERS, STREAMR
from pipeline.sinks import bus
from pipeline.sinks.files import write_json
from pipeline.transforms.publishers import publishers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

JOB: Final = "publishers"
SOURCES: Final = (STREAMR, ARBOR_NODES, GAPS, INTEGRITY)
MOST: Final = 1000  # publishers whose alerts are published by one run, those with most faults first


def run(run: Run) -> int:
    """Rebuild the table if its sources have changed, and publish alerts; return 1 if rebuilt, else 0."""
    done = rebuild(run, JOB, SOURCES, {PUBLISHERS: _publishers})
    if run.options.publish is not None:
        publish(run, run.options.publish)
    return done


def _publishers(run: Run) -> DataFrame:
    return publishers(*(run.table(spec).frame(run.spark) for spec in SOURCES))


def publish(run: Run, url: str) -> int:
    """Publish the alerts that the gateway at *url* does not have yet; return their number."""
    with JobLock(run.options.warehouse, "alerts") as lock:
        noted = lock.note()
        known = noted.get(url, {})
        wrong = run.table(PUBLISHERS).frame(run.spark).where("missing > 0 or bad > 0")
        rows = wrong.orderBy(F.desc(F.col("missing") + F.col("bad")), "protocol", "publisher").limit(MOST).collect()
        found = list(bus.alerts(rows))
        grown = [alert for alert in found if _has_grown(alert.size, known.get(alert.about, (0, 0)))]
        count = bus.publish(url, run.options.key, (alert.message for alert in grown), bus.ALERTS)
        if known != (now := {alert.about: [*alert.size] for alert in found}):
            write_json(lock.path / "note.json", noted | {url: now})
    if count:
        run.say(f"{JOB}: {count:,} alerts on {bus.ALERTS}")
    return count


def _has_grown(size: Sequence[int], before: Sequence[int]) -> bool:
    """Whether there are more faults, or a newer one; a gap that was filled is no alert."""
    return any(now > then for now, then in zip(size, before, strict=True))
