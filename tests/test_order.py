"""The longest files are distributed to the workers first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import FOLDER, LONGEST, pytest_collection_modifyitems


def ordered(config: Any, *names: str) -> list[Path]:
    items: list[Any] = [SimpleNamespace(path=FOLDER / name) for name in names]
    pytest_collection_modifyitems(config, items)
    return [item.path.relative_to(FOLDER) for item in items]


def test_a_worker_begins_with_the_longest_and_one_process_by_path() -> None:
    names = ["a.py", LONGEST[1], "b.py", LONGEST[0]]
    assert ordered(SimpleNamespace(workerinput={}), *names) == [*map(Path, (LONGEST[0], LONGEST[1], "a.py", "b.py"))]
    assert ordered(SimpleNamespace(), *names) == [*map(Path, names)]


def test_every_long_file_exists() -> None:
    assert [name for name in LONGEST if not (FOLDER / name).exists()] == []
