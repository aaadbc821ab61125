"""`compact` merges small files, and leaves large ones alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.jobs import compact, decode
from pipeline.run import Run
from pipeline.schemas import TOPIC_PACKETS
from pipeline.sinks import delta


def test_a_table_with_batches_that_added_nothing_is_compacted(make_run: Callable[..., Run]) -> None:
    """A batch without a message of a protocol, or whose segments were retired, adds no file."""
    run = make_run()
    table = run.table(TOPIC_PACKETS, decode.JOB)
    state = table.state()
    for n in range(delta.MIN_FILES + 2):
        staged = table.stage_rows([("g", n, 6, "t", 1, "{}", None)] if n % 5 else [])
        state = table.append(staged, replace(state, batch=state.batch + 1))
    before = sorted(table.frame(run.spark).collect())
    assert (state.rows, len(table.names())) == (8, 8)
    assert compact.run(run) == 1
    assert (len(table.names()), table.state()) == (1, state)
    assert sorted(table.frame(run.spark).collect()) == before
    assert table.batch_of(decode.JOB) == delta.MIN_FILES + 2
    assert compact.run(run) == 0


def test_large_files_are_not_merged_again(make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    table = run.table(TOPIC_PACKETS, decode.JOB)
    state = table.state()
    for n in range(delta.MIN_FILES):
        state = table.append(table.stage_rows([("g", n, 6, "t", 1, "{}", None)]), replace(state, batch=n + 1))
    monkeypatch.setattr(delta, "TARGET_BYTES", 1000)  # each file is larger than the half
    assert compact.run(run) == 0
    assert len(table.names()) == delta.MIN_FILES
