"""A warehouse of the previous version (`tests/vectors/pipeline`) is migrated, also by processes that are killed."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.transaction import create_table_with_add_actions
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from gateway.cli import app
from pipeline import migrate as migration
from pipeline.config import FORMAT, FORMAT_FILE, MANIFEST, LogSource, Options
from pipeline.errors import DamagedWarehouse, JobLocked
from pipeline.jobs import compact, decode, gaps, ingest, integrity
from pipeline.locks import JobLock
from pipeline.migrate import migrate
from pipeline.preflight import check
from pipeline.run import Run
from pipeline.schemas import (
    ARBOR_NODES,
    BATCHES,
    GAPS,
    INTEGRITY,
    MESSAGES,
    REJECTS,
    STREAMR,
    TABLES,
    TOPIC_PACKETS,
)
from pipeline.sinks import delta
from pipeline.sinks.files import write_json
from tests.pipeline.ingested import records
from tests.pipeline.interrupted import Killed

VECTORS = Path(__file__).parents[1] / "vectors" / "pipeline"
WRITTEN = "/tmp/delta-f1/log"  # where the log was that the vectors were made of
INTERRUPTED = ("ingest", "decode")  # in the last batch of the log


def extract(folder: Path) -> None:
    with tarfile.open(VECTORS / "format-1.tar.xz") as packed:
        packed.extractall(folder, filter="data")


@pytest.fixture(scope="module")
def fresh(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A warehouse of this version, of the same log."""
    folder = tmp_path_factory.mktemp("fresh")
    extract(folder)
    run = Run(spark, Options(folder / "fresh", LogSource(folder / "log")), lambda _text: None)
    for each in (ingest, decode, gaps, integrity):
        each.run(run)
    return run


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with a log, and with two warehouses of format 1 in which a job was interrupted."""
    extract(tmp_path)
    for plan in tmp_path.glob("*/.checkpoints/*/plan.json"):
        plan.write_text(plan.read_text().replace(WRITTEN, str(tmp_path / "log")))
    return tmp_path


@contextmanager
def cut_off(patch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Whatever runs meanwhile ends before its first change of the warehouse (0), after that (1), and so on."""
    left = step

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            made = change(*arguments, **more)
            left -= 2
            if left < 0:
                raise Killed
            return made

        return changing

    with patch.context() as inner, suppress(Killed):
        inner.setattr(delta, "create_table_with_add_actions", counted(create_table_with_add_actions))
        inner.setattr(migration, "write_json", counted(write_json))
        inner.setattr(Path, "unlink", counted(Path.unlink))
        yield


def rows_of(warehouse: Path) -> dict[str, list[str]]:
    tables = {spec.name: warehouse / spec.name for spec in TABLES if (warehouse / spec.name).exists()}
    return {name: sorted(map(repr, DeltaTable(path).to_pyarrow_table().to_pylist())) for name, path in tables.items()}


def verdicts(run: Run) -> list[str]:
    """All verdicts, without the columns that the format before did not have or that say when."""
    newer = {"checked_at", "publisher"}
    return sorted(repr({name: row[name] for name in row if name not in newer}) for row in records(run, INTEGRITY))


@pytest.mark.parametrize("job", INTERRUPTED)
def test_a_migrated_warehouse_continues_at_its_position(
    old: Path, job: str, fresh: Run, make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = old / f"{job}-interrupted"
    run = make_run(warehouse=warehouse, source=LogSource(old / "log"))
    with pytest.raises(Exception, match="trellis pipeline migrate --warehouse"):
        check("stats", run.options)
    had = [spec for spec in TABLES if (warehouse / spec.name / MANIFEST).exists()]  # those tables that there were then
    manifests = {spec: json.loads((warehouse / spec.name / MANIFEST).read_text()) for spec in had}
    kept = {path for path in warehouse.rglob("part-*.parquet") if ".staging" not in path.parts}
    step = 0
    while json.loads((warehouse / FORMAT_FILE).read_text())["format"] != FORMAT or any(warehouse.rglob(MANIFEST)):
        with cut_off(monkeypatch, step):  # each attempt comes a little further
            migrate(warehouse, lambda _text: None)
        step += 1
    assert step > 5
    check("stats", run.options)
    assert set(warehouse.rglob("part-*.parquet")) == kept, "the files stay where they are"
    for spec in set(had) - {REJECTS, BATCHES}:
        state = run.table(spec).state()
        assert (state.batch, state.rows) == (
            manifests[spec]["batch"],
            sum(part["rows"] for part in manifests[spec]["parts"]),
        ), spec.name
    assert [each.run(run) for each in (ingest, decode, gaps, integrity)] == [int(job == "ingest"), 1, 1, 1]
    assert [each.run(run) for each in (ingest, decode, gaps, integrity)] == [0] * 4
    found = rows_of(warehouse)
    for spec in (MESSAGES, STREAMR, ARBOR_NODES, TOPIC_PACKETS, GAPS):
        assert found[spec.name] == rows_of(fresh.options.warehouse)[spec.name], spec.name
    assert verdicts(run) == verdicts(fresh)
    assert len(found[REJECTS.name]) == 2
    batches = records(run, BATCHES)
    counted = [(row["job"], row["batch"]) for row in batches]
    assert len(counted) == len(set(counted))
    assert sum(row["rows_in"] for row in batches if row["job"] == "ingest") == 220
    compact.run(make_run(warehouse=warehouse, keep_hours=0))
    assert rows_of(warehouse) == found | {BATCHES.name: rows_of(warehouse)[BATCHES.name]}


def test_files_that_are_missing_are_noticed(old: Path) -> None:
    warehouse = old / "ingest-interrupted"
    next((warehouse / STREAMR.name).rglob("part-*.parquet")).unlink()
    with pytest.raises(DamagedWarehouse, match=r"silver/streamr/batch=\S* has not the \d+ rows"):
        migrate(warehouse, lambda _text: None)
    assert json.loads((warehouse / FORMAT_FILE).read_text()) == {"format": 1}


def test_a_locked_warehouse_is_not_migrated(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = old / "decode-interrupted"
    monkeypatch.setattr(JobLock.__init__, "__defaults__", (0.05,))
    with JobLock(warehouse, "decode"), pytest.raises(JobLocked, match="another process is running decode"):
        migrate(warehouse, lambda _text: None)
    assert not any(warehouse.rglob("_delta_log"))


def test_the_command_reports_its_result(old: Path) -> None:
    warehouse = old / "decode-interrupted"
    (warehouse / FORMAT_FILE).unlink()  # older than this file
    command = ["pipeline", "migrate", "--warehouse", str(warehouse)]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, f"{warehouse} has format {FORMAT}"), done.output
    again = CliRunner().invoke(app, command)
    assert (again.exit_code, again.stderr) == (0, f"{warehouse} has format {FORMAT}\n")
    shutil.rmtree(warehouse)
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, "is no warehouse; migrate turns format 1" in done.stderr) == (2, True), done.output
