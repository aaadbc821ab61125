"""The jobs: one short module each, with `run(run)`, which does what there is to do and says how much it was."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from pipeline.run import Run

# In the order in which `all` does them: each reads what those before it have written.
ORDER: Final = ("ingest", "decode", "integrity", "gaps", "forest", "stats", "compact", "report")
ALL: Final = "all"
IMPORT: Final = "import"  # what others have; no part of `all`


def job(name: str) -> Callable[[Run], int]:
    """What the job *name* does; it answers how many batches it did, or 0 where there was nothing to do."""
    if name == ALL:
        return _all
    found: Callable[[Run], int] = import_module(f"pipeline.jobs.{name}{'_' if name == IMPORT else ''}").run
    return found


def _all(run: Run) -> int:
    return sum(job(name)(run) for name in ORDER)
