"""The pipeline as its users run it, in processes of its own: killed, followed, on a cluster."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pyspark
import pytest
from deltalake import DeltaTable
from pyarrow.fs import FileSelector

from pipeline.config import LogSource, Options
from pipeline.jobs import IMPORT, ORDER, ingest, job
from pipeline.places import Place, filesystem
from pipeline.run import Run
from pipeline.schemas import (
    BATCHES,
    MESSAGES,
    REJECTS,
    STREAMR,
    TABLES,
    TOPIC_PACKETS,
    TableSpec,
)
from pipeline.session import prepare
from tests.pipeline.generate import MIXED, lines, mixed, write
from tests.pipeline.ingested import expected, files

SOAK = int(os.environ.get("TRELLIS_SOAK", "0"))
ROUNDS = max(2, SOAK // 4)
EACH_ROUND = 100  # records that are new when a job is killed
PATIENCE = 240.0
COMMITS = 26  # of all jobs when something is new, and about that many
WRITTEN = re.compile(r"/_delta_log/\d{20}\.json$|/report\.html$")
SEED = int(os.environ.get("TRELLIS_SEED") or time.time_ns() % 1_000_000)  # of the kills
PANDAS = os.environ.get("PANDAS_PYTHON") or None
ROOT = Path(__file__).parents[2]


# Programs that live for seconds are not worth a second compiler.
QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


def trellis(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gateway", "pipeline", *arguments]
    out, errors = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True, env=os.environ | QUICK)


def submitted(folder: Path, *arguments: str, master: str) -> subprocess.Popen[bytes]:
    """A job by `spark-submit` of the installed Spark, with the code in a zip, as docs/pipeline.md says it."""
    code = folder / "trellis.zip"
    if not code.exists():
        with zipfile.ZipFile(code, "w") as whole:
            for path in (path for name in ("pipeline", "gateway", "adapters") for path in (ROOT / name).rglob("*.py")):
                whole.write(path, path.relative_to(ROOT))
    environment = os.environ | QUICK
    prepare(environment, local=True)  # type: ignore[arg-type]
    del environment["PYTHONPATH"]  # the zip is to be enough
    spark = str(Path(pyspark.__file__).parent / "bin/spark-submit")
    command = [spark, "--master", master, "--conf", "spark.driver.host=127.0.0.1"]
    command += ["--conf", "spark.sql.parquet.compression.codec=gzip"]  # we ask for another, but the user's word counts
    command += ["--py-files", str(code), str(ROOT / "pipeline/submit.py"), *arguments]
    out, errors = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True, env=environment, cwd=folder)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for *process*, which is to do what it was told."""
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, errors.decode()


def seen(table: Path) -> list[int]:
    """The sequences that DuckDB finds in a table at this moment."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return [seq for (seq,) in duckdb.execute(f"SELECT seq FROM {files(table)}").fetchall()]


@pytest.mark.skipif(not SOAK, reason="test_live.py kills once; `make soak` many times")
@pytest.mark.timeout(60 * ROUNDS + 300)
def test_killed_at_any_moment_nothing_is_lost_and_nothing_is_there_twice(spark: Any, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    told = lines(mixed(40 * (ROUNDS + 1)))
    log, warehouse = tmp_path / "log", tmp_path / "warehouse"
    table = warehouse / MESSAGES.name
    for n in range(ROUNDS):
        write(log, told[40 * n : 40 * (n + 1)], each=8, first=40 * n + 1)
        follow = ["--follow", "--interval", "0.1", "--master", "local[1]"]
        process = trellis("ingest", "--source", f"log:{log}", "--warehouse", str(warehouse), *follow)
        before, ends = len(seen(table)), time.monotonic() + PATIENCE
        # Killed when something of this round has just appeared, or a moment later.
        while len(found := seen(table)) == before and time.monotonic() < ends:
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            assert len(found) == len(set(found))
            time.sleep(0.1)
        time.sleep(dice.random() * 0.5)
        os.killpg(process.pid, signal.SIGKILL) if dice.random() < 0.5 else process.kill()
        process.communicate()
        found = seen(table)
        assert len(found) == len(set(found))
    write(log, told[40 * ROUNDS :], each=8, first=40 * ROUNDS + 1)
    run = Run(spark, Options(warehouse, LogSource(log)), lambda _text: None)
    time.sleep(1)
    ingest.run(run)
    frame = run.table(MESSAGES).frame(spark)
    assert sorted(tuple(row) for row in frame.collect()) == expected(told)
    assert sorted(seen(table)) == [*range(1, len(told) + 1)]


def written(warehouse: Place) -> list[tuple[int, str]]:
    """The commits to all tables, and the report, which all jobs end with; the latest last: when, and by which job."""
    jobs = {spec.name: spec.job for spec in TABLES} | {"report.html": "report"}
    system, root = filesystem(warehouse)
    found = system.get_file_info(FileSelector(root, allow_not_found=True, recursive=True))
    told = [(info.mtime_ns, info.path.removeprefix(f"{root}/")) for info in found if WRITTEN.search(info.path)]
    return sorted((at, jobs[path.partition("/_delta_log")[0]]) for at, path in told)


def killed(process: subprocess.Popen[bytes], warehouse: Place, dice: random.Random) -> str:
    """Kill *process*, which does all jobs, anywhere between its start and its end; which job had committed last."""
    before = {*written(warehouse)}
    wanted, ends = (0 if dice.random() < 0.1 else dice.randrange(1, COMMITS)), time.monotonic() + 2 * PATIENCE
    new: list[tuple[int, str]] = []
    while len(new) < wanted and "report" not in [job for _, job in new]:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < ends, f"only {new}"
        time.sleep(0.3)
        new = [each for each in written(warehouse) if each not in before]
    time.sleep(dice.random() * (3 if wanted else 12))
    assert process.poll() is None, process.stderr and process.stderr.read().decode()
    os.killpg(process.pid, signal.SIGKILL) if dice.random() < 0.5 else process.kill()
    process.communicate()
    return next((job for _, job in reversed(new) if job), "start")


def compare_by_pandas(warehouse: Place, reference: Path) -> None:
    """The tables are equal for pandas too, which another Python has (`make soak` says which)."""
    if PANDAS is None:
        return
    names = [spec.name for spec in TABLES if spec not in (REJECTS, BATCHES)]
    command = [PANDAS, str(ROOT / "tests/pipeline/by_pandas.py"), str(warehouse), str(reference), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == names


def made_at_once(spark: Any, folder: Path, told: list[bytes]) -> Run:
    """A warehouse that all jobs made of the whole log, without a kill."""
    write(folder / "log", told, each=len(told))
    run = Run(spark, Options(folder / "warehouse", LogSource(folder / "log")), lambda _text: None)
    for name in ORDER:
        job(name)(run)
    return run


@pytest.mark.skipif(not SOAK, reason="a JVM for each kill; test_live.py kills once")
@pytest.mark.timeout(3 * PATIENCE * ROUNDS + 900)
def test_every_job_is_exact_whenever_it_is_killed(spark: Any, tmp_path: Path) -> None:
    """All jobs, killed at random moments: while they start, or at some commit of some job; the next run ends well."""
    dice = random.Random(SEED)
    log, warehouse = tmp_path / "log", tmp_path / "warehouse"
    told = [*lines(mixed(EACH_ROUND * ROUNDS)), b"rubbish\n"]
    given = ["all", "--source", f"log:{log}", "--warehouse", str(warehouse), "--master", "local[2]", "--heap", "512"]
    after: Counter[str] = Counter()
    for n in range(ROUNDS):
        some = told[EACH_ROUND * n : EACH_ROUND * (n + 1) + (n + 1 == ROUNDS)]
        write(log, some, each=len(some), first=EACH_ROUND * n + 1)
        after[killed(trellis(*given, "--follow", "--interval", "0.1"), warehouse, dice)] += 1
        for spec in TABLES:
            check_keys(warehouse, spec)
        time.sleep(3)  # a JVM outlives its driver
        ended(trellis(*given, "--keep-hours", "0"))
        assert sorted(seen(warehouse / MESSAGES.name)) == [*range(1, EACH_ROUND * (n + 1) + 1)]
        for spec in TABLES:
            check_keys(warehouse, spec)
    print(f"{ROUNDS} kills of seed {SEED}, after a commit of: {dict(after)}")  # noqa: T201  (for docs/pipeline.md, with -s)
    whole = made_at_once(spark, tmp_path / "whole", told)
    run = Run(spark, Options(warehouse), lambda _text: None)
    for spec in set(TABLES) - {REJECTS, BATCHES}:
        assert digest(warehouse / spec.name) == digest(whole.options.warehouse / spec.name), spec.name
        columns = [name for name in spec.schema.fieldNames() if name != "checked_at"]
        read = DeltaTable(warehouse / spec.name).to_pyarrow_table(columns=columns).to_pylist()
        by_spark = run.table(spec).frame(run.spark).select(*columns)
        assert (len(read), by_spark.exceptAll(whole.table(spec).frame(run.spark).select(*columns)).count()) == (
            by_spark.count(),
            0,
        )
    compare_by_pandas(warehouse, whole.options.warehouse)


def check_keys(warehouse: Path, spec: TableSpec) -> None:
    """Every key is in a table once; what could not be decoded has none."""
    if not DeltaTable.is_deltatable(str(warehouse / spec.name)):
        return
    good = "WHERE fault IS NULL" if "fault" in spec.schema.fieldNames() and spec is not TOPIC_PACKETS else ""
    key = ", ".join(f'"{name}"' for name in spec.key)
    query = f"SELECT {key} FROM {files(warehouse / spec.name)} {good} GROUP BY {key} HAVING count(*) > 1"
    if DeltaTable(warehouse / spec.name).count():
        assert duckdb.execute(query).fetchall() == [], spec.name


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A standalone master of the installed Spark, at this address, with two workers."""
    environment = os.environ | QUICK | {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
    prepare(environment, local=True)  # type: ignore[arg-type]
    home = Path(pyspark.__file__).parent
    started: list[subprocess.Popen[bytes]] = []

    def launch(name: str, *arguments: str) -> Path:
        log = folder / f"{len(started)}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True))
        return log

    def said(log: Path, word: str) -> str:
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            for line in log.read_text(errors="replace").splitlines():
                if word in line:
                    return line
            time.sleep(0.1)
        raise TimeoutError(log.read_text())

    host = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    try:
        master = said(launch("master.Master", *host), "Starting Spark master at").split()[-1]
        workers = [
            launch("worker.Worker", *host, "--cores", "1", "--memory", "700m", "-d", str(folder / name), master)
            for name in ("a", "b")
        ]
        for log in workers:
            said(log, "Successfully registered with master")
        yield master, started[1:]
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


@pytest.mark.timeout(400)
def test_a_cluster_makes_the_same_rows_also_if_a_worker_is_killed(whole: Run, tmp_path: Path) -> None:
    write(tmp_path / "log", MIXED, each=60)
    with cluster(tmp_path) as (master, (worker, _)):
        given = ["--source", f"log:{tmp_path}/log", "--warehouse", str(tmp_path / "far")]
        process = submitted(tmp_path, "all", *given, "--heap", "512", master=master)
        ends = time.monotonic() + PATIENCE
        while not seen(tmp_path / "far" / MESSAGES.name) and time.monotonic() < ends:
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            time.sleep(0.1)
        os.killpg(worker.pid, signal.SIGKILL)  # with its executor, when the first of eight jobs has ended
        ended(process)
    for spec in set(TABLES) - {REJECTS, BATCHES}:  # which name files, and count seconds
        digests = [digest(where / spec.name) for where in (whole.options.warehouse, tmp_path / "far")]
        assert digests[0] == digests[1], spec.name
    assert (tmp_path / "far/report.html").exists()
    written = next((tmp_path / "far" / STREAMR.name).rglob("*.parquet"))
    assert pq.read_metadata(written).row_group(0).column(0).compression == "GZIP"


@pytest.mark.skipif(not SOAK, reason="a JVM for each job; the cluster is sent `all` of them at once")
@pytest.mark.timeout(1200)
def test_each_job_can_be_submitted(tmp_path: Path) -> None:
    write(tmp_path / "log", MIXED, each=60)
    for name in (*ORDER, IMPORT):
        given = ["--source", f"log:{tmp_path}/log", "--warehouse", str(tmp_path / "warehouse")]
        out = ["--output", str(tmp_path / name)] if name in ("report", IMPORT) else []
        ended(submitted(tmp_path, name, *given, *out, master="local[2]"))
    assert sorted(path.name for path in (tmp_path / "warehouse").glob("*/*") if path.parent.name[0] != ".") == sorted(
        spec.name.partition("/")[2] for spec in TABLES
    )
    assert (tmp_path / "report").read_text().startswith("<!")
    assert list((tmp_path / IMPORT).glob("0*.jsonl"))


def digest(table: Path) -> str:
    """A hash of a table's rows, in whatever order and files they are."""
    left_out = "EXCLUDE (checked_at)" if "integrity" in str(table) else ""
    told = duckdb.execute(f"SELECT COLUMNS(* {left_out})::VARCHAR FROM {files(table)}")  # a time needs pytz otherwise
    rows = sorted(repr(row) for row in told.fetchall())
    assert rows, table
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
