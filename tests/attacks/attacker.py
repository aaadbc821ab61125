"""One attack in a process of its own: `python -m tests.attacks.attacker NAME SECONDS TARGET` prints its report."""

from __future__ import annotations

import json
import os
import sys

from .table import BY_NAME
from .target import Report, Target

NICE = 10  # it stands for another machine, and must not take the gateway's or the honest peers' CPU time


def main(name: str, seconds: str, target: str) -> None:
    """Play the attack."""
    os.nice(NICE)
    try:
        report = BY_NAME[name].run(Target(**json.loads(target)), float(seconds))
    except OSError as error:  # a gateway that answers nothing more
        report = Report(broken=[f"the attack ended with {error!r}"])
    sys.stdout.write(report.text() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
