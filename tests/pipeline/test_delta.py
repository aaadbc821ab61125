"""A Delta table survives concurrent writers and power failures, and accepts new columns."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipeline.derive import state_of
from pipeline.errors import DamagedWarehouse, JobLocked
from pipeline.schemas import TOPIC_PACKETS, TableSpec
from pipeline.sinks import delta
from pipeline.sinks.delta import LOG, Table
from pipeline.sinks.state import TableState


def packet(seq: int, gateway: str = "g") -> tuple[Any, ...]:
    return (gateway, seq, 6, "t", 1, "{}", None)


def commits(table: Table) -> list[Path]:
    return sorted((table.path / LOG).glob("0*.json"))


def sequences(table: Table) -> list[int]:
    return sorted(DeltaTable(table.path).to_pyarrow_table()["seq"].to_pylist())


def add(table: Table, batch: int, *rows: tuple[Any, ...]) -> TableState:
    return table.append(table.stage_rows(list(rows)), replace(table.state(), batch=batch))


STEPS = (
    "rows",
    "nothing",
    "large",
    "compact",
    "vacuum",
    "cut off before",
    "cut off after",
    "cut off merging",
    "reopen",
)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=20), st.integers(0, 2**32))
def test_a_table_has_each_row_once_after_any_steps_and_kills(steps: list[str], seed: int) -> None:
    """Batches with rows, with none, with a large file; merges and vacuums; and kills at each of these."""
    dice, batch, seqs = random.Random(seed), 0, list[int]()
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "TARGET_BYTES", 20_000)
        patch.setattr(delta, "MIN_FILES", 3)
        table = Table(Path(folder), TOPIC_PACKETS, "decode")
        for step in [*steps, "compact", "vacuum"]:
            match step:
                case "compact":
                    table.compact()
                case "cut off merging":
                    with patch.context() as merging, suppress(KilledWriter):
                        merging.setattr(delta, "sync_added", killed)
                        table.compact()
                    table = Table(Path(folder), TOPIC_PACKETS, "decode")
                case "vacuum":
                    table.vacuum(0)
                    there = {path.relative_to(table.path).as_posix() for path in table.path.rglob("*.parquet")}
                    assert {name for name in there if not name.startswith(LOG)} == {*table.names()}
                case "reopen":
                    table = Table(Path(folder), TOPIC_PACKETS, "decode")
                case _:
                    count = 0 if step == "nothing" else dice.randrange(1, 4)
                    new = [*range(len(seqs) + 1, len(seqs) + 1 + count)]
                    text = dice.randbytes(30_000).hex() if step == "large" else "{}"
                    staged = table.stage_rows([("g", seq, 6, "t", 1, text, None) for seq in new])
                    state = replace(table.state(), batch=batch + 1)
                    if step == "cut off before":
                        table = Table(Path(folder), TOPIC_PACKETS, "decode")
                        continue
                    with patch.context() as committed, suppress(KilledWriter):
                        if step == "cut off after":
                            committed.setattr(Table, "_sync", killed)
                        table.append(staged, state)
                    if step == "cut off after":
                        table = Table(Path(folder), TOPIC_PACKETS, "decode")
                    batch, seqs = batch + 1, [*seqs, *new]
            assert (table.state().batch, table.state().rows, table.batch_of("decode")) == (batch, len(seqs), batch)
            assert not table.exists() or sequences(table) == seqs


class KilledWriter(BaseException):
    """As if the process ended here."""


def killed(*_: Any) -> None:
    raise KilledWriter


@pytest.mark.parametrize("name", ["a b", "[1]", "grün", "it's"])
def test_a_batch_is_one_commit_with_its_transaction_and_state(tmp_path: Path, name: str) -> None:
    table = Table(tmp_path / name, TOPIC_PACKETS, "decode")
    assert (table.state(), table.names(), table.batch_of("decode")) == (TableState(), [], 0)
    add(table, 1, packet(1), packet(2))
    state = add(Table(tmp_path / name, TOPIC_PACKETS, "decode"), 2, packet(3))
    assert (state.batch, state.rows, state.added) == (2, 3, 1)
    other = Table(tmp_path / name, TOPIC_PACKETS)
    assert (other.state(), other.batch_of("decode"), other.batch_of("ingest")) == (state, 2, 0)
    assert all((other.path / file).is_file() for file in other.names())
    told = [json.loads(line) for line in commits(table)[-1].read_text().splitlines()]
    assert sorted(next(iter(action)) for action in told) == ["add", "commitInfo", "txn"]
    assert sequences(table) == [1, 2, 3]


def test_derived_tables_are_recomputed_only_if_rows_changed(tmp_path: Path) -> None:
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    states = [state_of(add(table, 1, packet(1), packet(2)))]
    assert state_of(add(table, 2)) == states[0], "a batch without rows"
    table.note(replace(table.state(), notes={"a": 1}))
    table.compact()
    assert state_of(table.state()) == states[0]
    staged = table.stage_rows([packet(3), packet(4)])
    states.append(state_of(table.replace(staged, table.state())))  # as many rows as before
    states.append(state_of(table.replace(table.stage_rows([]), table.state())))
    states.append(state_of(add(table, 3, packet(1), packet(2))))
    assert len({tuple(state) for state in states}) == 4


def test_files_are_found_by_their_statistics(tmp_path: Path) -> None:
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    for batch, (gateway, seq) in enumerate((("a", 1), ("a", 11), ("b", 1)), 1):
        add(table, batch, packet(seq, gateway), packet(seq + 4, gateway))
    first, second, other = table.names()
    assert table.holding({"a": [[2, 3]]}) == [first]
    assert table.holding({"a": [[5, 11]]}) == [first, second]
    assert table.holding({"a": [[6, 10]], "b": [[5, 5]]}) == [other]
    assert table.holding({"c": [[1, 20]]}) == []


def test_of_two_that_write_the_same_batch_one_is_refused(tmp_path: Path) -> None:
    one, other = (Table(tmp_path, TOPIC_PACKETS, "decode") for _ in range(2))
    add(one, 1, packet(1))
    staged = other.stage_rows([packet(2)])
    add(one, 2, packet(2))
    for _ in range(2):
        with pytest.raises(JobLocked, match="batch 2 of decode"):
            other.append(staged, replace(other.state(), batch=2))
    assert sequences(one) == [1, 2]


def test_a_commit_is_refused_after_a_concurrent_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conflict is found by the commit itself: nothing between the look at the table and the commit protects it."""
    one, other = (Table(tmp_path, TOPIC_PACKETS, "decode") for _ in range(2))
    add(one, 1, packet(1))
    staged, commit = other.stage_rows([packet(3)]), DeltaTable.create_write_transaction

    def overtaken(*arguments: Any, **more: Any) -> None:
        monkeypatch.undo()
        add(one, 2, packet(2))
        commit(*arguments, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    with pytest.raises(JobLocked, match="another process writes"):
        other.append(staged, TableState(2))
    assert sequences(one) == [1, 2]


def test_a_log_that_is_damaged_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    for batch in (1, 2, 3):
        add(table, batch, packet(batch))
    commits(table)[1].write_bytes(b"rubbish")
    with pytest.raises(DamagedWarehouse, match=r"_delta_log cannot be read: .") as refused:
        Table(tmp_path, TOPIC_PACKETS, "decode").state()
    assert "\n" not in str(refused.value)


def test_new_columns_are_added_and_other_changes_refused(tmp_path: Path) -> None:
    state = add(Table(tmp_path, TOPIC_PACKETS, "decode"), 1, packet(1))
    more = StructType([*TOPIC_PACKETS.schema, StructField("new", LongType())])
    wider = Table(tmp_path, TableSpec(TOPIC_PACKETS.name, more, TOPIC_PACKETS.key), "decode")
    assert add(wider, 2, (*packet(2), 7)).rows == state.rows + 1
    read = DeltaTable(wider.path).to_pyarrow_table().sort_by("seq")
    assert read["new"].to_pylist() == [None, 7]
    other = StructType([StructField("seq", StringType())])
    with pytest.raises(DamagedWarehouse, match="the column seq is"):
        Table(tmp_path, TableSpec(TOPIC_PACKETS.name, other, ("seq",)), "decode").folder()


def test_the_log_is_summed_up_and_old_files_are_deleted(tmp_path: Path) -> None:
    table = Table(tmp_path, TOPIC_PACKETS, "decode")
    for batch in range(1, 53):
        state = table.append(table.stage_rows([packet(batch)]), replace(table.state(), batch=batch))
    assert [path.name[:20] for path in (table.path / LOG).glob("*.checkpoint.parquet")] == [f"{49:020d}"]
    (table.path / "left/_temporary/0").mkdir(parents=True)
    for name in ("left/part-0.parquet", "left/_temporary/0/part-1.parquet"):
        (table.path / name).touch()
    assert table.compact() == (52, 1)
    assert table.vacuum(1) == 0, "readers may still read the old files"
    assert table.vacuum(0, at_least=60) == 0
    for path in (table.path / LOG).iterdir():
        os.utime(path, (1, 1))
    assert table.vacuum(0) == 54
    assert int(commits(table)[0].stem) >= 49
    assert [path.name for path in table.path.rglob("*.parquet") if path.parent.name != LOG] == table.names()
    again = Table(tmp_path, TOPIC_PACKETS, "decode")
    assert (again.state(), again.batch_of("decode"), sequences(again)) == (state, 52, [*range(1, 53)])
