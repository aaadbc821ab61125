"""`pytest --quick`: the tests that start no process and take no second, for the inner loop.

No test is marked for the former: it runs until it, or a fixture of it, is about to start a process, and is skipped
there. Tests that take long are marked `slow`. Properties are tried with fewer examples, tests of many seeds with the
first of them. `tests/pipeline` is left out as a whole: it needs Spark, which is a process of Java.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Sequence
from functools import wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# An audit hook would see more, but each thread that coverage traces calls it, and two at a time fail (Python 3.11).
STARTS = (
    *((subprocess.Popen, "__init__"), (BaseProcess, "start")),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "system")),
)
SPARK = Path(__file__).parent / "pipeline"
REASON = "starts a process"
EXAMPLES = 20  # of a property, unless it wants fewer
SEEDS = 5  # of a test that has a parameter `seed`


def pytest_addoption(parser: pytest.Parser) -> None:
    """How to ask for it."""
    parser.addoption("--quick", action="store_true", help="leave out tests that start a process or are marked slow")


def pytest_configure(config: pytest.Config) -> None:
    """Do what was asked for."""
    config.addinivalue_line(
        "markers", "slow: takes a second of an idle processor, all its cases together; not run by --quick"
    )
    if config.getoption("quick"):
        config.pluginmanager.register(_Quick())
        # What a test has open when it is skipped in its middle is found later, and fails another one.
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
        _bound_examples()
        settings.register_profile("quick", deadline=None, max_examples=EXAMPLES)
        settings.load_profile("quick")


def _bound_examples() -> None:
    """Whoever asks for more examples, for a property or the runs of a state machine, gets as many as all others."""
    construct = settings.__init__

    @wraps(construct)
    def bounded(self: settings, *arguments: Any, **named: Any) -> None:
        if isinstance(wanted := named.get("max_examples"), int):
            named["max_examples"] = min(wanted, EXAMPLES)
        construct(self, *arguments, **named)

    settings.__init__ = bounded  # type: ignore[method-assign]


def _left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return those of *items* that are slow, or have a seed after the first few of their function."""
    left_out = {item for item in items if item.get_closest_marker("slow")}
    seeds: dict[str, set[object]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and "seed" in item.callspec.params:
            first = seeds.setdefault(item.nodeid.partition("[")[0], set())
            seed = item.callspec.params["seed"]
            if len(first) < SEEDS:
                first.add(seed)
            if seed not in first:
                left_out.add(item)
    return left_out


class _Quick:
    """Skips the test that is about to start a process."""

    def __init__(self) -> None:
        self._testing = False
        self._started = False
        for owner, name in STARTS:
            setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if self._testing:
                self._started = True
                pytest.skip(REASON)
            return start(*arguments, **named)

        return guarded

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Tests of the pipeline are not even imported: they need what `make pipeline` installs."""
        return True if collection_path == SPARK else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what takes long."""
        left_out = _left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """A test begins; before, pytest and its plugins may start what they need."""
        self._testing, self._started = True, False
        try:
            return (yield)
        finally:
            self._testing = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, Any]:
        """Where the skip became a failure on its way, out of a thread or a group of exceptions, it is a skip."""
        report = yield
        if report.failed and call.when != "teardown" and self._started:
            report.outcome, report.longrepr = "skipped", (__file__, 0, REASON)
        return report
