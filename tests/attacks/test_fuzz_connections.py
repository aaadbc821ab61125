"""Random programs of slow, half-closed and churning connections; `TRELLIS_FUZZ` or `TRELLIS_SOAK` says how many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.fuzz_connections import errors, play

SEEDS = min(500, int(os.environ.get("TRELLIS_FUZZ", os.environ.get("TRELLIS_SOAK", "3"))))


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_fuzz_connections(tmp_path: Path, seed: int) -> None:
    assert play(tmp_path, seed) is None


def test_errors_are_found_in_a_log() -> None:
    log = (
        'started\nTraceback (most recent call last):\n  File "x", line 1\n    f()\nValueError: <a at 0x1f>\nTraceback '
    )
    assert errors(log) == ["ValueError: <a at 0x>"]
