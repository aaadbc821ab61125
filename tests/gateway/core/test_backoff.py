"""Waits before another attempt."""

from __future__ import annotations

import pytest

from gateway.core.backoff import retry_seconds


@pytest.mark.parametrize(("failures", "most"), [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (10_000, 300)])
def test_waits_double_up_to_a_limit_and_differ(failures: int, most: float) -> None:
    waits = [retry_seconds(failures, 1.0, 300.0) for _ in range(50)]
    assert most / 2 <= min(waits) < max(waits) <= most
