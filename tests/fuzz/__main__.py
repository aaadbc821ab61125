"""`python -m tests.fuzz [NAME ...] [--seconds N]` fuzzes decoders with atheris, each in a process of its own.

What reaches new code is kept in .fuzz/NAME, and what fails in .fuzz/NAME-crash-*; `make fuzz` installs atheris.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(".fuzz")
MAX_SIZE = 8192  # bytes of an input


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one decoder in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["adapters", "gateway"]):
        from .targets import TARGETS
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-max_len={MAX_SIZE}", "-timeout=30"]
    report = [f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *limits, *report, str(found), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    """How many of the named decoders failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    names = sorted(path.name for path in CORPUS.iterdir())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}; else all, in turn")
    parser.add_argument("--seconds", type=int, default=60, help="for each")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no such decoder: {', '.join(sorted(unknown))}")
    if len(given.names) == 1:
        fuzz(given.names[0], given.seconds)
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(given.seconds)]
    return sum(subprocess.run([*command, name], check=False).returncode != 0 for name in given.names or names)


if __name__ == "__main__":
    sys.exit(main())
