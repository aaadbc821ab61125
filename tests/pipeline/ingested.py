"""The tables and files that an ingest leaves, and ingests that are cut off at a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.run import Run
from pipeline.schemas import MESSAGES
from pipeline.sources.records import decode_row
from tests.pipeline.generate import GATEWAY
from tests.pipeline.interrupted import Killed

MakeRun = Callable[..., Run]


def rows(run: Run, spec: Any = MESSAGES) -> list[tuple[Any, ...]]:
    table = run.table(spec)
    return sorted(tuple(row) for row in table.frame(run.spark).collect())


def expected(all_lines: list[bytes]) -> list[tuple[Any, ...]]:
    return sorted(decode_row(line, GATEWAY) for line in all_lines)


def by_name(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(MESSAGES.schema.fieldNames(), row, strict=True))


def files(table: Path) -> str:
    """The files of a Delta table for DuckDB, as the package `deltalake` reads its log."""
    names = pa.table(DeltaTable(table).get_add_actions())["path"].to_pylist()
    return f"read_parquet({[str(table / name) for name in names]})" if names else "(SELECT NULL::BIGINT seq LIMIT 0)"


# Exactly once


@contextmanager
def cut_off(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Whatever runs meanwhile ends before its first commit (0), after that (1), before the second (2), and so on."""
    commit, left = DeltaTable.create_write_transaction, step

    def counting(*arguments: Any, **more: Any) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        commit(*arguments, **more)
        left -= 2
        if left < 0:
            raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(DeltaTable, "create_write_transaction", counting)
        yield
