"""`python -m benchmarks`: start the servers, run all rounds, print the table and keep it.

Exit codes: 0 done; 1 nothing could be measured, a server that was asked for by name did not start, a round
broke off, or a delivery did not arrive exactly once; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from .generator import WORKLOADS, LoadError, build
from .measure import QUICK, USUAL, Pace, Round, interleaved, measure
from .report import write
from .servers import NODE_FOLDER, ROOT, SERVERS, Places, Server, Unavailable


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round of each, to see that it works")
    parser.add_argument("--rounds", type=int, help=f"rounds of each server and workload ({USUAL.rounds})")
    parser.add_argument("--seconds", type=float, help=f"length of a round ({USUAL.seconds})")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, metavar="NAME", help="; ".join(SERVERS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, metavar="NAME", help="; ".join(WORKLOADS))
    parser.add_argument("--node-folder", type=Path, default=NODE_FOLDER, help="holds the server's node_modules")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where results are written")
    return parser.parse_args(argv)


def _pace(options: argparse.Namespace) -> Pace:
    given = {"rounds": options.rounds, "seconds": options.seconds}
    chosen = QUICK if options.quick else USUAL
    return replace(chosen, **{name: value for name, value in given.items() if value is not None})


def _start(names: Sequence[str], places: Places, stack: ExitStack) -> tuple[list[Server], dict[str, str]]:
    """Start what can be started; the others, with the reason."""
    servers: list[Server] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            servers.append(stack.enter_context(SERVERS[name](places)))
        except Unavailable as reason:
            missing[name] = str(reason)
    return servers, missing


def _say(each: Round) -> None:
    fault = "" if each.result.exact else f"   FAULT: {each.result}"
    figure = each.deliveries_per_cpu_second / 1e3
    sys.stderr.write(f"{each.workload:9} {each.server:8} {figure:7.0f} k deliveries per CPU-s{fault}\n")


def _run(
    binary: Path, servers: Sequence[Server], workloads: Sequence[str], pace: Pace
) -> tuple[list[Round], dict[str, str]]:
    """All rounds; and those that a server did not survive, with the reason."""
    rounds: list[Round] = []
    failed: dict[str, str] = {}
    for server, workload in interleaved(servers, workloads, pace.rounds):
        try:
            rounds.append(measure(binary, server, workload, pace))
            _say(rounds[-1])
        except LoadError as error:
            failed[f"{workload} on {server.name}"] = str(error)
    return rounds, failed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep; the exit code."""
    options = arguments(argv)
    pace, places = _pace(options), Places(options.out / "servers", options.node_folder)
    try:
        binary = build(options.out)
    except LoadError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    with ExitStack() as stack:
        servers, absent = _start(options.servers or list(SERVERS), places, stack)
        rounds, failed = _run(binary, servers, options.workloads or list(WORKLOADS), pace)
    text, path = write(options.out, rounds, absent | failed, pace)
    sys.stdout.write(f"{text}\nWritten to {path}\n")
    good = rounds and not failed and not (options.servers and absent)
    return 0 if good and all(each.result.exact for each in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
