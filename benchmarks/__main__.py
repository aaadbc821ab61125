"""`python -m benchmarks`: start the servers, run all rounds, write the page and keep everything.

A complete run writes docs/performance.md with its pictures; one of some workloads, or a quick one, writes the same to
build/bench, unless --page says where. Exit codes: 0 done; 1 nothing could be measured, a round broke off, or a
delivery did not arrive exactly once; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from . import page
from .catalogue import WORKLOADS
from .rounds import BenchmarkOutcome, contestants, run
from .workload import ROOT, Bench

USUAL = Bench()
QUICK = Bench(rounds=1, seconds=0.3, warmup=0.1)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a comparison of two commits understands as well."""
    parser.add_argument("workloads", nargs="*", help=f"all, or these (fan*, rate-*): {', '.join(WORKLOADS)}")
    parser.add_argument("--quick", action="store_true", help="one short round of each, to see that it works")
    parser.add_argument("--rounds", type=int, help=f"rounds of each contestant and workload ({USUAL.rounds})")
    parser.add_argument("--seconds", type=float, help=f"length of a round ({USUAL.seconds})")
    parser.add_argument("--out", type=Path, default=USUAL.folder, help="where results are kept")


def bench_of(options: argparse.Namespace) -> Bench:
    """Return how long to measure, and where."""
    chosen = QUICK if options.quick else USUAL
    given = {"rounds": options.rounds, "seconds": options.seconds, "folder": options.out.resolve()}
    return replace(chosen, **{name: value for name, value in given.items() if value is not None})


def exit_on_sigterm() -> None:
    """Let SIGTERM end the program as an exception does: servers are stopped, worktrees removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def chosen(patterns: Sequence[str]) -> list[str]:
    """Return the names of the workloads that *patterns* mean, all without any; raise `SystemExit` if one means none."""
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in WORKLOADS):
            sys.stderr.write(f"no workload is called {pattern}\n")
            raise SystemExit(2)
    return [name for name in WORKLOADS if not patterns or any(fnmatch(name, pattern) for pattern in patterns)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    add_options(parser)
    parser.add_argument("--servers", nargs="+", metavar="NAME", help="only these contestants")
    parser.add_argument(
        "--node-folder", type=Path, default=USUAL.node, help="holds the node_modules of servers on Node"
    )
    parser.add_argument("--page", type=Path, help="the folder for performance.md and its pictures")
    parser.add_argument("--note", default="", help="what readers of the page have to know")
    options = parser.parse_args(argv)
    bench, names = replace(bench_of(options), node=options.node_folder), chosen(options.workloads)
    run_facts, outcome = page.facts(options.note), BenchmarkOutcome()
    for name in names:
        entrants = contestants(WORKLOADS[name])
        wanted = [entrant for entrant in entrants if not options.servers or entrant.name in options.servers]
        run(name, WORKLOADS[name], wanted, bench, outcome)
    complete = not (options.workloads or options.servers or options.quick)
    folder = options.page or (ROOT / "docs" if complete else options.out)
    sys.stdout.write(page.write(folder, outcome, bench, run_facts))
    sys.stdout.write(f"Kept in {page.keep(options.out, outcome, bench, run_facts)}\n")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
