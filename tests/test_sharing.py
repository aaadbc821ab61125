"""Which tests the processes of the suite share out together, and who waits while attacks are measured."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.sharing import MEASURED, PIPELINE, SuiteScheduling

ATTACKS = [f"{MEASURED}{part}.py::test_{n}" for part in ("", "_more") for n in range(4)]
PIPE = [f"{PIPELINE}test_{file}.py::test_{n}" for file in "ab" for n in range(3)]
REST = [f"tests/test_{file}.py::test_{n}" for file in "cdef" for n in range(4)]


class Node:
    """A process that runs tests."""

    def __init__(self, id: str) -> None:
        self.gateway = SimpleNamespace(id=id)  # of execnet
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler_of(config: pytest.Config, monkeypatch: pytest.MonkeyPatch, nodes: int, dist: str = "loadfile") -> Any:
    for option, value in (("dist", dist), ("tx", [f"{nodes}*popen"]), ("loadscopereorder", False)):
        monkeypatch.setattr(config.option, option, value, raising=False)
    return config.hook.pytest_xdist_make_scheduler(config=config, log=Producer("test"))


def begun(scheduler: Any, count: int, tests: Sequence[str]) -> list[Node]:
    """So many processes that have collected *tests*, and were given the first of them."""
    nodes = [Node(f"gw{number}") for number in range(count)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    return nodes


def test_one_process_has_the_tests_that_share_a_session_of_spark(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(pytestconfig, monkeypatch, 2)
    assert isinstance(scheduler, SuiteScheduling)
    tests = (
        "tests/pipeline/test_sql.py::test_a[x::y]",
        "tests/pipeline/test_jobs.py::test_b",
        "tests/test_a.py::test_c",
        "tests/pipeline/test_live.py::test_d",
        "tests/pipeline/test_processes.py::test_e",
    )
    one, other, elsewhere, *programs = map(scheduler._split_scope, tests)
    assert one == other not in programs
    assert programs[0] == programs[1]
    assert elsewhere == "tests/test_a.py"
    scheduler = scheduler_of(pytestconfig, monkeypatch, 2, "worksteal")
    assert not isinstance(scheduler, SuiteScheduling)


@pytest.mark.parametrize("tests", [[*PIPE, *ATTACKS, *REST], [*ATTACKS, *REST, *PIPE], [*REST, *PIPE, *ATTACKS]])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_one_process_at_most_works_beside_one_that_measures(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, count: int, tests: list[str]
) -> None:
    scheduler = scheduler_of(pytestconfig, monkeypatch, count)
    nodes = begun(scheduler, count, tests)
    done = {id(node): 0 for node in nodes}
    beside: list[int] = []
    while scheduler.has_pending:
        # A process runs a test when it knows the next one, or that there is none.
        running = [node for node in nodes if len(node.given) - done[id(node)] > (not node.shutting_down)]
        assert running
        names = [tests[node.given[done[id(node)]]] for node in running]
        measuring = sum(name.startswith(MEASURED) for name in names)
        assert measuring <= 1
        beside += [len(running) - 1] * measuring
        for node in running:
            test = node.given[done[id(node)]]
            done[id(node)] += 1
            scheduler.mark_test_complete(node, test)
    assert sorted(tests[n] for node in nodes for n in node.given) == sorted(tests)
    assert all(node.shutting_down for node in nodes)
    assert len(beside) == len(ATTACKS)
    if tests[-1] not in ATTACKS:  # at the end each process runs the test that it kept
        assert max(beside) == min(count - 1, 1)
