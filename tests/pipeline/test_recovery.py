"""A Delta table is recovered after a power failure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.errors import DamagedWarehouse
from pipeline.run import Run, check_batches
from pipeline.schemas import BATCHES, TOPIC_PACKETS, TableSpec
from pipeline.sinks import delta, files, recovery
from pipeline.sinks.delta import LOG, Table
from pipeline.sinks.files import sync
from pipeline.sinks.recovery import HINT
from pipeline.sinks.state import TableState
from tests.pipeline.test_delta import add, commits, packet, sequences


@pytest.mark.parametrize("left", [b"", b'{"commitInfo":{"trel'])
def test_a_commit_that_a_power_failure_cut_off_was_none(tmp_path: Path, left: bytes) -> None:
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    state = add(table, 1, packet(1))
    add(table, 2, packet(2))
    commits(table)[-1].write_bytes(left)
    again = Table(tmp_path, TOPIC_PACKETS, "decode")
    assert again.state() == state
    add(again, 2, packet(2))
    assert sequences(again) == [1, 2]


def test_a_batch_cut_off_anywhere_is_done_again_whole(tmp_path: Path) -> None:
    """A power failure leaves the beginning of the newest commit; one of whole lines is as incomplete as any other."""
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    before = add(table, 1, packet(1))
    after = table.replace(table.stage_rows([packet(1), packet(2)]), replace(before, batch=2), batch=True)
    whole = commits(table)[-1].read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 3
    for end in {0, 10, *ends, *(end + 1 for end in ends), len(whole) - 10, len(whole)}:
        commits(table)[-1].write_bytes(whole[:end])
        assert Table(tmp_path, TOPIC_PACKETS, "decode").state() == (after if end == len(whole) else before), end
        commits(table)[0].with_name(f"{2:020d}.json").write_bytes(whole)
    assert sequences(table) == [1, 2]
    commits(table)[-1].write_bytes(bytes(len(whole)))
    again = Table(tmp_path, TOPIC_PACKETS, "decode")
    assert again.state() == before
    assert again.replace(again.stage_rows([packet(1), packet(2)]), replace(before, batch=2), batch=True) == after


@pytest.mark.parametrize("torn", ["commit", "merged", "missing"])
def test_a_merge_cut_off_by_a_power_failure_loses_nothing(tmp_path: Path, torn: str) -> None:
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    for batch in range(1, 10):
        state = add(table, batch, packet(batch))
    assert table.compact() == (9, 1)
    (merged,) = table.names()
    match torn:
        case "commit":  # the package writes what it removes before what it adds
            commits(table)[-1].write_bytes(b"".join(commits(table)[-1].read_bytes().splitlines(True)[:-1]))
        case "merged":
            (table.path / merged).write_bytes(bytes((table.path / merged).stat().st_size))
        case "missing":
            (table.path / merged).unlink()
    again = Table(tmp_path, TOPIC_PACKETS, "decode")
    assert (again.state(), len(again.names()), sequences(again)) == (state, 9, [*range(1, 10)])
    assert again.compact() == (9, 1)
    assert Table(tmp_path, TOPIC_PACKETS, "decode").state() == state
    assert sequences(again) == [*range(1, 10)]


@pytest.fixture(scope="module")
def summed_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse whose newest commit has a checkpoint."""
    warehouse = tmp_path_factory.mktemp("summed up")
    table = Table(warehouse, TOPIC_PACKETS, "decode")
    table.append(table.stage_rows([packet(1)]), TableState(1))
    for version in range(2, 50):
        table.note(TableState(1, notes={"version": version}))
    return warehouse


@pytest.mark.parametrize("left", [b"", b"PAR1", None], ids=["empty", "torn", "missing"])
@pytest.mark.parametrize("hint", [b"", b'{"version":', None], ids=["hint empty", "hint torn", "hint whole"])
@pytest.mark.parametrize("with_commit", [False, True])
def test_a_torn_checkpoint_is_removed(
    summed_up: Path, tmp_path: Path, left: bytes | None, hint: bytes | None, with_commit: bool
) -> None:
    """The commits that it sums up are still there, since they are deleted only later."""
    shutil.copytree(summed_up, tmp_path / "copy")
    table = Table(tmp_path / "copy", TOPIC_PACKETS, "decode")
    log = table.path / LOG
    checkpoint = log / f"{49:020d}.checkpoint.parquet"
    if hint is not None:
        (log / HINT).write_bytes(hint)
    if with_commit:
        commits(table)[-1].write_bytes(b"{")
    if left is not None:
        checkpoint.write_bytes(left)
    else:
        checkpoint.unlink()
    again = Table(tmp_path / "copy", TOPIC_PACKETS, "decode")
    last = 48 if with_commit else 49
    assert again.state().notes == {"version": last}
    assert not checkpoint.exists()
    add(again, 2, packet(2))
    assert sequences(again) == [1, 2]
    assert DeltaTable(again.path).version() == last + 1


def test_everything_is_on_the_disk_before_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure may leave only what was synced, so each file and folder is, in the order of the steps."""
    synced: set[Path] = set()

    def noted(path: Path) -> None:
        sync(path)
        synced.add(path)

    for module in (delta, files, recovery):
        monkeypatch.setattr(module, "sync", noted)
    table = Table(tmp_path / "warehouse", TOPIC_PACKETS, "decode")
    for batch in range(1, 50):
        add(table, batch, packet(batch))
    folders = [table.path, *table.path.parents[:2]]
    assert table.compact() == (49, 1)
    table.vacuum(0)
    there = {path for path in table.path.rglob("*") if path.is_file()}
    assert len(commits(table)) == 53
    assert any(path.name.endswith(".checkpoint.parquet") for path in there)
    assert {*there, *folders} <= synced


def test_a_reader_refuses_a_torn_commit(tmp_path: Path) -> None:
    """Its state would say that rows are in the table that are not, and derived tables would leave them out for good."""
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    add(table, 1, packet(1))
    commits(table)[-1].write_bytes(commits(table)[-1].read_bytes().splitlines(True)[0])
    with pytest.raises(DamagedWarehouse, match="trellis pipeline decode repairs"):
        Table(tmp_path, TOPIC_PACKETS).state()
    add(Table(tmp_path, TOPIC_PACKETS, "decode"), 1, packet(1))
    assert Table(tmp_path, TOPIC_PACKETS).state().rows == 1


def test_torn_counts_of_batches_are_written_again(make_run: Callable[..., Run]) -> None:
    run = make_run()
    state = TableState(1, counts=["decode", 1, 1, 5, 5, 5, 0, 0.1])
    check_batches(run, "decode", state)
    table = run.table(BATCHES)
    commits(table)[-1].write_bytes(b"{")
    check_batches(run, "decode", state)
    assert DeltaTable(table.path).to_pyarrow_table()["job"].to_pylist() == ["decode"]


def test_each_commit_records_its_number_of_lines(tmp_path: Path) -> None:
    table = Table(tmp_path / "new", TOPIC_PACKETS, "decode")
    add(table, 1, packet(1))
    table.note(TableState(1))
    wider = TableSpec(TOPIC_PACKETS.name, StructType([*TOPIC_PACKETS.schema, StructField("new", LongType())]), ("seq",))
    add(Table(tmp_path / "new", wider, "decode"), 2, (*packet(2), 7))
    table.vacuum(0)
    made = Table(tmp_path / "made", TOPIC_PACKETS, "decode")
    staged = files.finished(table.path / Path(table.names()[0]).parent)
    made.path.mkdir(parents=True)
    made.create_with(staged.files, TableState(1, 1), {"decode": 1})
    for commit in [*commits(table), *commits(made)]:
        told = [json.loads(line) for line in commit.read_bytes().splitlines()]
        assert told[0]["commitInfo"][recovery.LINES] == len(told), commit
