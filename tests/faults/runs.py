"""How the test files share the runs of the fault harness: each file has its own part, and its own fork server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness.fork_server import ForkServer
from tests.faults.harness.run import play
from tests.faults.harness.shim import NoCompiler, library

RUNS = 40  # that `make test` plays; `make soak` plays a thousand
SEEDS = range(RUNS)
PARTS = 4


def part(number: int) -> list[int]:
    """The seeds of one file."""
    return list(SEEDS[number::PARTS])


def require_compiler() -> None:
    """Skip the test, or with TRELLIS_REQUIRE_INTEROP=1 fail it, where the fault layer cannot be compiled."""
    try:
        library()
    except NoCompiler as error:
        if os.environ.get("TRELLIS_REQUIRE_INTEROP") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """Where the gateways of a file come from."""
    require_compiler()
    with ForkServer() as fork_server:
        yield fork_server


def check(seed: int, fork_server: ForkServer, place: Path) -> None:
    """Play the run of *seed*; every promise holds."""
    outcome = asyncio.run(play(seed, fork_server, place))
    assert outcome.accepted
    replay = f"python -m tests.faults.harness --seed {seed}"
    assert not outcome.violations, "\n".join([str(outcome), *outcome.violations, f"replay it: {replay}"])
