"""The check of an index at the start ends in time, however large the index is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.storage import index_file
from gateway.storage.index_file import Tables

PAGE = 4_096
ROWS = 400_000


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """An index of some megabytes, one of whose first pages, which SQLite reads last, is overwritten."""
    path = tmp_path / "index.sqlite"
    Tables(path, "")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS zz (key INTEGER PRIMARY KEY, value BLOB)")
        connection.executemany("INSERT INTO zz VALUES (?, ?)", ((key, b"x" * 80) for key in range(ROWS)))
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 4 // PAGE * PAGE)
        file.write(b"\xaa" * PAGE)
    return path


def test_damage_is_found(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "CHECK_SECONDS", 60.0)
    with pytest.raises(sqlite3.DatabaseError):
        Tables(damaged, "").check()


def test_a_check_that_takes_too_long_is_cut_off(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading an index of 10 million records from a disk took half a minute. The time is up before or in the check."""
    monkeypatch.setattr(index_file, "CHECK_SECONDS", 0.002)
    tables, found = Tables(damaged, ""), 0
    for _ in range(20):  # a check may be faster on a busy machine, where the timer is late
        try:
            tables.check()
        except sqlite3.DatabaseError:
            found += 1
    assert found < 20
    assert tables._write.execute("SELECT 1").fetchone() == (1,), "what follows is not interrupted"
