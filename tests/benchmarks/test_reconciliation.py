"""The measurement of reconciliation finds the prepared differences."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reconciliation import compare, read_set, write_log


def test_the_benchmark_finds_the_differences_between_two_logs(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / str(lacking), (n for n in range(1_000) if n != lacking)) for lacking in (3, 700)]
    sets = [read_set(*log).items for log in logs]
    assert [len(items) for items in sets] == [999, 999]
    found, count, size = compare(*sets)
    assert (found, count) == (2, 1)
    assert size < 5_000
    for segments, _ in logs:
        segments.close()
