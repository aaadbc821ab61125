"""`python -m benchmarks.streaming`: `ingest` over HTTP, beside Structured Streaming that fills the same table.

| part | measures |
|---|---|
| catching up | the whole log of a gateway, in batches of 100,000 records, in turns |
| following | from publishing a message until the table has it, one after the other |
| waiting | CPU time while nothing is published |

The query reads `trellis_log` and hands each batch to `foreachBatch`, which commits it as `ingest` does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
from pyspark.sql import DataFrame, SparkSession

from pipeline.config import HttpSource, Options
from pipeline.jobs import ingest
from pipeline.run import Run
from pipeline.schemas import MESSAGES
from pipeline.session import start
from pipeline.sinks.delta import Table
from pipeline.sources.gateway import NAME, RemoteLog

from .pipeline import Watch
from .pipeline_goals import GRANTS
from .servers import trellis
from .workload import Bench

OWN: Final = "batches of the pipeline"
STREAM: Final = "Structured Streaming"
QUIET_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1  # between two looks for new records
JOB: Final = "ingest"
AT_ONCE: Final = 5_000  # messages in a request
LINES: Final = {"Content-Type": "application/x-ndjson"}


class Ways:
    """Both ways to fill `bronze/messages` below *folder* with the log of the gateway at *url*."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self._folder, self._made = spark, url, folder, 0
        spark.dataSource.register(RemoteLog)

    def run(self) -> Run:
        """Return a run with new tables."""
        self._made += 1
        return Run(self.spark, Options(self._folder / f"tables-{self._made}", HttpSource(self.url)), lambda _text: None)

    def query(self, run: Run, **trigger: Any) -> Any:
        """Start a query that fills the table of *run*."""
        table = Table(run.options.warehouse, MESSAGES, JOB)
        table.folder()

        def take(rows: DataFrame, batch: int) -> None:
            state = table.state()
            table.append(table.stage(rows.where("reason is null")), replace(state, batch=batch + 1))

        rows = self.spark.readStream.format(NAME).option("url", self.url).load()
        checkpoint = rows.writeStream.option("checkpointLocation", str(run.options.warehouse / "offsets"))
        return checkpoint.foreachBatch(take).trigger(**trigger).start()

    @contextmanager
    def following(self, way: str, run: Run) -> Iterator[None]:
        """Fill the table of *run* meanwhile."""
        if way == STREAM:
            query = self.query(run, processingTime=f"{POLL_SECONDS} seconds")
            yield
            query.stop()
            return
        over = threading.Event()

        def repeat() -> None:
            while not over.is_set():
                if not ingest.run(run):
                    over.wait(POLL_SECONDS)

        thread = threading.Thread(target=repeat)
        thread.start()
        yield
        over.set()
        thread.join()


def _rows(run: Run) -> int:
    return run.table(MESSAGES).state().rows


def publish(url: str, count: int) -> None:
    """Publish *count* messages."""
    text = "a usual message of a usual length"
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        body = "\n".join(json.dumps({"n": n, "temperature": n % 40 / 2, "text": text}) for n in numbers)
        address = f"{url}/v1/channels/lobby/messages"
        httpx.post(address, content=body, headers=LINES, timeout=60).raise_for_status()


def catch_up(watch: Watch, ways: Ways, count: int, turns: int) -> None:
    """Measure how long the whole log takes."""
    for turn in range(turns):
        for way in (OWN, STREAM):
            run = ways.run()
            with watch.measured(f"{way}, {'warm' if turn else 'cold'}", count):
                if way == OWN:
                    ingest.run(run)
                else:
                    ways.query(run, availableNow=True).awaitTermination()
            assert _rows(run) >= count, "the gateway logs a few records of its own"


def follow(watch: Watch, ways: Ways, messages: int) -> None:
    """Measure how long a message takes, and what waiting costs."""
    for way in (OWN, STREAM) * 2:
        run, took = ways.run(), list[float]()
        with ways.following(way, run):
            before = _settled(run)
            for _ in range(messages):
                began = time.perf_counter()
                httpx.post(f"{ways.url}/v1/channels/lobby/messages", json={"n": 1}).raise_for_status()
                while _rows(run) <= before:
                    time.sleep(0.02)
                took.append(time.perf_counter() - began)
                before = _settled(run)
            with watch.measured(f"{way}, {QUIET_SECONDS:.0f} s without a message", 1):
                time.sleep(QUIET_SECONDS)
        measured = f"{statistics.median(took):.2f} s (median of {messages}), at most {max(took):.2f} s"
        sys.stdout.write(f"{way}: from publishing to the table {measured}\n")


def _settled(run: Run) -> int:
    """Wait until the table has not grown for a second; return its rows."""
    before = -1
    while (now := _rows(run)) != before or not now:
        before = now
        time.sleep(1)
    return now


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args(argv)
    watch = Watch()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with trellis(Bench(folder=folder), "streaming", settings=GRANTS) as server:
            spark = start(Options(folder, master="local[2]"))
            ways = Ways(spark, f"http://{server.http}", folder)
            publish(ways.url, options.records)
            catch_up(watch, ways, options.records, options.turns)
            follow(watch, ways, options.messages)
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
