"""Runs of the fault harness, part 4: whatever happens under load, every promise holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.nursery import Nursery
from tests.faults.runs import check, nursery, part

__all__ = ["nursery"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", part(3))
def test_every_promise_holds(tmp_path: Path, nursery: Nursery, seed: int) -> None:
    check(seed, nursery, tmp_path)
