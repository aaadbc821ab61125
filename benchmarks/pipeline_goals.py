"""`python -m benchmarks.pipeline_goals`: the pipeline's goals, each with what was measured, in some twelve minutes.

| part | measures |
|---|---|
| jobs | all jobs over 5 million records, a fifth of them signed; beside the ingest, DuckDB on the same files |
| cores | all jobs over 500,000 records on one core and on two, in turns; beside them a pool of processes |
| follow | seconds from publishing at a gateway until `gold/channel_minute` counts the message, with `all --follow` |
| memory | the most memory while 50 million records are ingested, in ten pieces |

It needs two cores without other work, 8 GB of memory and 10 GB of disk. There are no Arbor nodes in the logs. Exit
codes: 0 every goal is met, 1 one is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import httpx
from deltalake import DeltaTable

from pipeline import codecs
from pipeline.config import LogSource, Options
from pipeline.jobs import ORDER, ingest, job
from pipeline.run import Run
from pipeline.schemas import CHANNEL_MINUTE
from pipeline.session import start

from .pipeline import Watch
from .pipeline_log import write
from .servers import trellis
from .workload import ROOT, Bench

RECORDS: Final = 5_000_000
CORE_RECORDS: Final = 500_000
MANY_RECORDS: Final = 50_000_000
PIECES: Final = 10
DUCK: Final = "ingest by DuckDB (no checksums)"
SIGNATURES: Final = 100_000
MESSAGES: Final = 12  # that are published one after the other
PATIENCE_SECONDS: Final = 120.0
GRANTS: Final = {"TRELLIS_AUTH__GRANTS": json.dumps({"rest:anonymous": ["*:*", "admin:*"]})}


class Goal(NamedTuple):
    """A goal, what was measured, and what was measured beside it."""

    what: str
    met: bool
    measured: str
    beside: str = ""


class Bed(NamedTuple):
    """Where and with what everything is measured: *scale* is the part of the records to take."""

    watch: Watch
    folder: Path
    pool: Pool
    scale: float

    def count(self, records: int) -> int:
        """Return how many records to take in place of *records*."""
        return max(1_000, int(records * self.scale))

    def run(self, name: str, log: Path) -> Run:
        """Return a run on *log* with new tables, in a session on two cores."""
        options = Options(self.folder / name, LogSource(log), master="local[2]")
        return Run(start(options), options, lambda _text: None)


def all_jobs(watch: Watch, run: Run, what: str, count: int) -> float:
    """Return the seconds that all jobs take together; *watch* measures each."""
    run.options.warehouse.mkdir(parents=True)
    began = time.perf_counter()
    for name in ORDER:
        with watch.measured(f"{what}{name}", count):
            job(name)(run)
    return time.perf_counter() - began


def measure_jobs(bed: Bed) -> list[Goal]:
    """Measure all jobs, warm, and DuckDB on the same files."""
    small, log, count = bed.folder / "small", bed.folder / "log", bed.count(RECORDS)
    write(bed.pool, small, bed.count(RECORDS // 100))
    write(bed.pool, log, count)
    run = bed.run("warm-tables", small)
    all_jobs(bed.watch, run, "warming: ", bed.count(RECORDS // 100))
    seconds = all_jobs(bed.watch, bed.run("tables", log), "", count)
    run.spark.stop()
    duckdb.execute("SET threads = 2")
    with bed.watch.measured(DUCK, count):
        source = f"read_json('{log}/*.jsonl', format = 'newline_delimited', maximum_object_size = 4194304)"
        duckdb.execute(f"COPY (SELECT * FROM {source}) TO '{bed.folder}/duck.parquet' (COMPRESSION zstd)")
    rates = {figure.what: figure.rows / figure.seconds for figure in bed.watch.figures}
    taken, duck = rates["ingest"], rates[DUCK]
    return [
        Goal("ingest 250,000 rows/s", taken >= 250_000, f"{taken:,.0f} rows/s", f"DuckDB {duck:,.0f}"),
        Goal(f"all jobs over {count:,} records in 180 s", seconds < 180, f"{seconds:.0f} s"),
    ]


def measure_cores(bed: Bed) -> list[Goal]:
    """Measure how much faster two cores are than one, for all jobs and for a pool of Python processes.

    A session on `local[1]` alone would not be on one core: the JVM compiles and collects garbage in other threads, and
    Spark's Python workers are other processes. So everything of one turn is confined to its cores.
    """
    log, count = bed.folder / "cores-log", bed.count(CORE_RECORDS)
    write(bed.pool, log, count)
    wires = _wires(log)
    times: dict[int, list[float]] = {1: [], 2: []}
    pools: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        sessions = {cores: stack.enter_context(_confined(cores)) for cores in times}
        for turn in range(3):
            for cores, session in sessions.items():
                arguments = (bed.folder / f"cores-{turn}-{cores}", log, cores, count)
                with bed.watch.measured(f"all jobs, {cores} cores, turn {turn}", count):
                    seconds = session.submit(_timed_jobs, *arguments).result()
                if turn:  # else the JVM was cold
                    times[cores].append(seconds)
                    pools[cores].append(_verify(bed, wires, cores))
    ours, plain = (min(each[1]) / min(each[2]) for each in (times, pools))
    return [Goal("two cores 1.7 times as fast as one", ours >= 1.7, f"{ours:.2f} times", f"a plain pool {plain:.2f}")]


def _confined(cores: int) -> ProcessPoolExecutor:
    """Return a process that uses, with all that it starts, only the first *cores* cores of those of this process."""
    usable = sorted(os.sched_getaffinity(0))[:cores]
    return ProcessPoolExecutor(1, get_context("spawn"), os.sched_setaffinity, (0, usable))


def _timed_jobs(folder: Path, log: Path, cores: int, count: int) -> float:
    options = Options(folder, LogSource(log), master=f"local[{cores}]")
    run = Run(start(options), options, lambda _text: None)
    return all_jobs(Watch(), run, f"{cores} cores: ", count)


def _wires(log: Path) -> list[str]:
    lines = (line for path in sorted(log.iterdir()) for line in path.open("rb"))
    return [json.loads(line)["wire"] for line in lines if b'"protocol":"streamr"' in line][:SIGNATURES]


def _verify(bed: Bed, wires: Sequence[str], processes: int) -> float:
    chunks = [wires[begin : begin + 1_000] for begin in range(0, len(wires), 1_000)]
    with get_context("spawn").Pool(processes) as pool:
        pool.map(codecs.check_streams, [wires[:10]] * 8)
        with bed.watch.measured(f"signatures, a pool of {processes}", len(wires)):
            checks = pool.imap_unordered(codecs.check_streams, chunks)
            assert all(each.verdict == "ok" for chunk in checks for each in chunk)
        return bed.watch.figures[-1].seconds


def measure_follow(bed: Bed) -> list[Goal]:
    """Measure how long after its publication a message is counted."""
    warehouse = bed.folder / "followed"
    command = [sys.executable, "-m", "gateway", "pipeline", "all", "--follow", "--interval", "0.2"]
    dice, took = random.Random(1), list[float]()
    with trellis(Bench(folder=bed.folder), "follow", settings=GRANTS) as server:
        url = f"http://{server.http}"
        command += ["--source", url, "--warehouse", str(warehouse), "--master", "local[2]"]
        with (bed.folder / "follow.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, cwd=ROOT)
        try:
            for n in range(MESSAGES):
                httpx.post(f"{url}/v1/channels/lobby/messages", json={"n": n}).raise_for_status()
                began = time.perf_counter()
                while _counted(warehouse) <= n:
                    assert process.poll() is None, (bed.folder / "follow.log").read_text()
                    assert time.perf_counter() - began < PATIENCE_SECONDS
                    time.sleep(0.05)
                took.append(time.perf_counter() - began)
                time.sleep(dice.random() * 2)
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
    measured = f"{statistics.median(took[2:]):.1f} s (median), at most {max(took[2:]):.1f} s"
    return [Goal("from publishing to gold in 10 s", max(took[2:]) < 10, measured, f"the first one {took[0]:.1f} s")]


def _counted(warehouse: Path) -> int:
    """Return how many messages `gold/channel_minute` counts, 0 without the table."""
    path = str(warehouse / CHANNEL_MINUTE.name)
    if not DeltaTable.is_deltatable(path):
        return 0
    return sum(DeltaTable(path).to_pyarrow_table(columns=["n"])["n"].to_pylist())


def measure_memory(bed: Bed) -> list[Goal]:
    """Measure the most memory while many records are ingested; segments are removed once they were read."""
    log, piece = bed.folder / "many", bed.count(MANY_RECORDS) // PIECES
    run, seconds, peaks = bed.run("many-tables", log), 0.0, list[float]()
    for n in range(PIECES):
        write(bed.pool, log, piece, n * piece + 1, plain=True)
        with bed.watch.measured(f"ingest, piece {n + 1}", piece):
            ingest.run(run)
        seconds, peaks = seconds + bed.watch.figures[-1].seconds, [*peaks, bed.watch.figures[-1].megabytes]
        for path in sorted(log.iterdir())[1:]:  # the first one has the name of the gateway
            path.unlink()
    run.spark.stop()
    measured = f"at most {max(peaks):,.0f} MB, at first {peaks[0]:,.0f} MB; {piece * PIECES / seconds:,.0f} rows/s"
    return [Goal(f"{piece * PIECES:,} records in bounded memory", max(peaks) < 1.3 * peaks[0] + 300, measured)]


PARTS: Final[dict[str, Callable[[Bed], list[Goal]]]] = {
    "jobs": measure_jobs,
    "cores": measure_cores,
    "follow": measure_follow,
    "memory": measure_memory,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print; return 0 if every goal is met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_goals", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"all, or some of {', '.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the records to take, to see that it works")
    options = parser.parse_args(argv)
    if unknown := {*options.parts} - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    watch, goals = Watch(), list[Goal]()
    with tempfile.TemporaryDirectory() as name, get_context("spawn").Pool(2) as pool:
        for part in options.parts or PARTS:
            goals += PARTS[part](Bed(watch, Path(name), pool, options.scale))
    for figure in watch.figures:
        rate = figure.rows / figure.seconds
        sys.stdout.write(
            f"| {figure.what} | {figure.rows:,} | {figure.seconds:.2f} s | {rate:,.0f}/s"
            f" | {figure.cpu_seconds:.1f} CPU-s | {figure.megabytes:,.0f} MB |\n"
        )
    for goal in goals:
        sys.stdout.write(f"{'met' if goal.met else 'NOT MET'}: {goal.what}: {goal.measured}; {goal.beside}\n")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
