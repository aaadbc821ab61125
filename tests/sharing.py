"""Shares out the suite: a file of tests at a time, the files of the pipeline to two processes, few beside attacks.

In each process Spark starts and warms up, and makes the tables that many tests look at, which takes half a minute. So
one process has all tests of the pipeline that use this session of Spark most, and another one those that wait for
programs with sessions of their own.

Attacks measure how long honest peers wait. While one is played, no more than one other process works, however many
there are. This does not hold at the end of the suite, where each process runs the last test that it kept; so attacks
come early (`tests.order`).
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

PIPELINE: Final = "tests/pipeline/"
RUN_PROGRAMS: Final = ("connect", "gateway", "interrupts", "live", "object_store", "processes")
PROGRAMS: Final = tuple(f"{PIPELINE}test_{name}.py" for name in RUN_PROGRAMS)
MEASURED: Final = "tests/attacks/test_attacks"  # how the names begin of files that measure
BESIDE: Final = 1  # other processes that work meanwhile


def scope(test: str) -> str:
    """Return what is run by the same process as *test*: its file, or a part of the pipeline."""
    if test.startswith(PROGRAMS):
        return f"{PIPELINE}programs"
    return PIPELINE if test.startswith(PIPELINE) else test.partition("::")[0]


class SuiteScheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Gives each process a scope at a time; some wait while another one measures."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._waiting: set[Any] = set()

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Assign the first scope of the queue that *node* may begin now; where there is none, it waits."""
        if (chosen := self._first_for(node)) is None:
            self._waiting.add(node)
        else:
            self._waiting.discard(node)
            self.workqueue.move_to_end(chosen, last=False)
            super()._assign_work_unit(node)

    def _first_for(self, node: Any) -> str | None:
        others = [self.assigned_work[other] for other in self.nodes if other is not node]
        working = sum(self._pending_of(work) > 1 for work in others)  # a process keeps its last test until it has more
        measures = any(self._measures(work) for work in others)
        if measures and working > BESIDE:
            return None
        none_measured = measures or working > BESIDE
        return next((each for each in self.workqueue if not (none_measured and each.startswith(MEASURED))), None)

    @staticmethod
    def _measures(work: dict[str, dict[str, bool]]) -> bool:
        return any(each.startswith(MEASURED) and not all(tests.values()) for each, tests in work.items())

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Let those that wait look again."""
        super().mark_test_complete(node, item_index, duration)
        for each in [*self._waiting]:
            self._reschedule(each)

    def remove_node(self, node: Any) -> str | None:
        """Forget a process that ended."""
        self._waiting.discard(node)
        crashed: str | None = super().remove_node(node)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Say who runs which tests in `make test`."""
    return SuiteScheduling(config, log) if config.getoption("dist") == "loadfile" else None
