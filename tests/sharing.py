"""Shares out the suite: a file of tests at a time, and all files of the pipeline to one process.

In a second process Spark would start and warm up, and make the tables that many tests look at, once more: that takes a
minute of processor time.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

PIPELINE: Final = "tests/pipeline/"


def scope(test: str) -> str:
    """Return what is run by the same process as *test*: its file, or the folder of the pipeline."""
    return PIPELINE if test.startswith(PIPELINE) else test.partition("::")[0]


class PipelineTogether(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Gives each process a scope at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Say who runs which tests in `make test`."""
    return PipelineTogether(config, log) if config.getoption("dist") == "loadfile" else None
