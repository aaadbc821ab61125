"""One attack in a process of its own."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from .table import BY_NAME
from .target import Report, Target


def play(name: str, seconds: float, target: Target, out: Connection) -> None:
    """Play the attack *name* as if from another machine, with only the CPU time that is left; send its report *out*."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        report = BY_NAME[name].run(target, seconds)
    except OSError as error:  # a gateway that answers nothing more
        report = Report(broken=[f"the attack ended with {error!r}"])
    out.send(report)
