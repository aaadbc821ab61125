"""Shares out first the test files that take longest, so that no worker has a long one left when the others are done.

`make test` gives each worker the next file as soon as it has done one (`--dist loadfile`). pytest-xdist would begin
with the files that have most tests, which are not those that take longest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

# The files that take 20 s or more of a run of the whole suite, the longest first: about right is good enough. Those of
# the pipeline are two (`tests.sharing`), and those that measure come right after it, while other processes wait.
LONGEST = (
    "pipeline/test_jobs.py",
    "attacks/test_attacks.py",
    "attacks/test_attacks_more.py",
    "attacks/test_attacks_special.py",
    "pipeline/test_processes.py",
    "faults/test_runs_1.py",
    "faults/test_runs_2.py",
    "faults/test_runs_3.py",
    "faults/test_runs_4.py",
    "test_docker.py",
    "conformance/test_pairs.py",
    "test_how_to.py",
    "gateway/http/test_contract.py",
    "gateway/jetstream/test_leaving.py",
    "interop/test_arbor_offered.py",
    "faults/test_cluster_runs.py",
    "browser/test_console_pages.py",
    "conformance/test_deployed.py",
    "benchmarks/test_growth.py",
    "conformance/test_gateways.py",
    "interop/test_arbor_relay.py",
    "interop/test_threads.py",
    "gateway/http/test_persistent.py",
    "gateway/http/test_head_limits.py",
    "attacks/test_fuzz_connections.py",
    "gateway/cluster/test_cluster.py",
    "gateway/access/test_secrets.py",
    "faults/test_stop.py",
    "interop/test_arbor_peer.py",
    "benchmarks/test_runner.py",
    "browser/test_console_keyboard.py",
)
PLACES = {FOLDER / name: place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, in a process that shares the suite with others."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
