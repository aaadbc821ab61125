"""Tables that somebody removed or changed: those that cannot be made again by the next run are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.errors import DamagedWarehouse
from pipeline.jobs import decode, forest, ingest
from pipeline.run import Run
from pipeline.schemas import ARBOR_NODES, BATCHES, FOREST, MESSAGES
from tests.pipeline.generate import MIXED, lines, mixed, write
from tests.pipeline.ingested import records

MakeRun = Callable[..., Run]


def test_derived_tables_that_do_not_belong_together_are_refused(make_run: MakeRun, log: Path) -> None:
    write(log, lines(mixed(40)))
    run = make_run()
    ingest.run(run)
    decode.run(run)
    shutil.rmtree(run.table(ARBOR_NODES).path)
    with pytest.raises(DamagedWarehouse, match="they have 1, 0, 1 batches"):
        decode.run(run)


def test_a_removed_table_that_is_rebuilt_is_made_again(make_run: MakeRun, log: Path) -> None:
    """It has no state that cannot be made again, unlike a table to which batches are added."""
    write(log, MIXED[:80], each=80)
    run = make_run()
    assert [job.run(run) for job in (ingest, decode, forest)] == [1, 1, 1]
    before = sorted(map(repr, records(run, FOREST)))
    shutil.rmtree(run.table(FOREST).path)
    assert [forest.run(run), forest.run(run)] == [1, 0]
    assert sorted(map(repr, records(run, FOREST))) == before != []
    assert sorted(row["batch"] for row in records(run, BATCHES) if row["job"] == forest.JOB) == [1, 2]


def test_rows_that_another_program_changed_are_refused(make_run: MakeRun, log: Path) -> None:
    write(log, lines(mixed(40)))
    run = make_run()
    ingest.run(run)
    DeltaTable(run.table(MESSAGES).path).optimize.compact(min_commit_interval=0)
    assert ingest.run(run) == 0, "that may be done"
    DeltaTable(run.table(MESSAGES).path).delete("seq > 30")
    with pytest.raises(DamagedWarehouse, match=r"another program has changed the rows \(DELETE, version \d\)"):
        ingest.run(run)
