"""One attack in a process of its own: `python -m tests.attacks.attacker NAME SECONDS TARGET` prints its report."""

from __future__ import annotations

import json
import os
import sys

from .table import BY_NAME
from .target import Report, Target


def main(name: str, seconds: str, target: str) -> None:
    """Play the attack, as if from another machine: with only the CPU time that is left."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        report = BY_NAME[name].run(Target(**json.loads(target)), float(seconds))
    except OSError as error:  # a gateway that answers nothing more
        report = Report(broken=[f"the attack ended with {error!r}"])
    sys.stdout.write(report.text() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
