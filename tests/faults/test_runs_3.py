"""Runs of the fault harness, part 3: whatever happens under load, every promise holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.fork_server import ForkServer
from tests.faults.runs import check, fork_server, part

__all__ = ["fork_server"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", part(2))
def test_every_promise_holds(tmp_path: Path, fork_server: ForkServer, seed: int) -> None:
    check(seed, fork_server, tmp_path)
