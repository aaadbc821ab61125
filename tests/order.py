"""Shares out first the test files that take longest, so that no worker has a long one left when the others are done.

`make test` gives each worker the next file as soon as it has done one (`--dist loadfile`). pytest-xdist would begin
with the files that have most tests, which are not those that take longest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

# The files that take 20 s or more of a run of the whole suite, the longest first: about right is good enough.
LONGEST = (
    "pipeline/test_jobs.py",
    "attacks/test_attacks.py",
    "attacks/test_attacks_more.py",
    "pipeline/test_gateway.py",
    "conformance/test_pairs.py",
    "faults/test_runs_1.py",
    "faults/test_runs_2.py",
    "faults/test_runs_3.py",
    "faults/test_runs_4.py",
    "attacks/test_attacks_special.py",
    "test_how_to.py",
    "browser/test_console_pages.py",
    "conformance/test_deployed.py",
    "browser/test_console_keyboard.py",
    "conformance/test_gateways.py",
    "gateway/cluster/test_cluster.py",
    "pipeline/test_live.py",
    "pipeline/test_copies.py",
    "pipeline/test_ingest.py",
)
PLACES = {FOLDER / name: place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, in a process that shares the suite with others."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
