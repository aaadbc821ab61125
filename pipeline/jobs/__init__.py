"""The jobs: one module each, whose `run(run)` does the pending work and returns the number of batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from pipeline.errors import Unreachable

if TYPE_CHECKING:
    from pipeline.run import Run  # which imports Spark; the names of the jobs are needed without it

# In the order of `all`: each job reads what the jobs before it have written.
ORDER: Final = (
    "ingest",
    "decode",
    "integrity",
    "gaps",
    "forest",
    "stats",
    "questions",
    "publishers",
    "compact",
    "report",
)
ALL: Final = "all"
IMPORT: Final = "import"  # not part of `all`
SQL: Final = "sql"  # reads only, so it needs no lock
NAMES: Final = (*ORDER, IMPORT, SQL, ALL)
# Of `all --follow`: what is only done after something else was, or after so many seconds (old files are deleted then).
AFTERWARDS: Final = ("compact", "report")
REST_SECONDS: Final = 600.0
MIGRATE: Final = "migrate"  # no job: it changes the format of a warehouse, without Spark


def job(name: str) -> Callable[[Run], int]:
    """Return the function that runs the job *name*; it returns the number of batches, 0 if nothing was pending."""
    if name == ALL:
        return _All()
    found: Callable[[Run], int] = import_module(f"pipeline.jobs.{name}{'_' if name == IMPORT else ''}").run
    return found


class _All:
    """Does all jobs. While it is repeated, a gateway that cannot be reached to publish on does not stop the others."""

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self, run: Run) -> int:
        done, rests = 0, time.monotonic() < self._due
        failed: Unreachable | None = None
        for name in ORDER:
            if name in AFTERWARDS:
                if rests and not done:
                    continue
                self._due = time.monotonic() + REST_SECONDS
            try:
                done += job(name)(run)
            except Unreachable as error:
                if not run.options.follow:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed
        return done
