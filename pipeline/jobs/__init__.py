"""The jobs: one module each, whose `run(run)` does the pending work and returns the number of batches."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

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
MIGRATE: Final = "migrate"  # no job: it changes the format of a warehouse, without Spark


def job(name: str) -> Callable[[Run], int]:
    """Return the function that runs the job *name*; it returns the number of batches, 0 if nothing was pending."""
    if name == ALL:
        return _all
    found: Callable[[Run], int] = import_module(f"pipeline.jobs.{name}{'_' if name == IMPORT else ''}").run
    return found


def _all(run: Run) -> int:
    return sum(job(name)(run) for name in ORDER)
