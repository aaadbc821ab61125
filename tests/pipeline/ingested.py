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
from pipeline.schemas import MESSAGES, TableSpec
from pipeline.sources.records import decode_row
from tests.pipeline.generate import GATEWAY
from tests.pipeline.interrupted import Killed

MakeRun = Callable[..., Run]


def records(run: Run, spec: TableSpec) -> list[dict[str, Any]]:
    """The rows of a table as another reader than Spark has them, which needs a hundredth of the time."""
    table, names = run.table(spec), spec.schema.fieldNames()
    found = DeltaTable(table.path).to_pyarrow_table(columns=names).to_pylist() if table.exists() else []
    return [dict(row) for row in found]


def rows(run: Run, spec: TableSpec = MESSAGES) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in records(run, spec))


def by_spark(run: Run, spec: TableSpec = MESSAGES) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in run.table(spec).frame(run.spark).collect())


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
