"""`python -m tests.attacks [NAME ...]`: play attacks, each on a gateway of its own, and print the table."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from .stage import AttackOutcome, Stage
from .table import BY_NAME

COLUMNS = (
    "attack",
    "answers",
    "dropped",
    "MiB",
    "left",
    "CPU",
    "fds",
    "p50 moved",
    "work p50",
    "longest before",
    "during",
    "work",
    "lost",
    "verdict",
)
QUIET = 3.0  # seconds before and after each: medians of fewer samples differ by more than the effect that is measured


def main() -> int:
    """Play attacks and print the table; return 1 if a bound did not hold, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description="Attacks, and what they cost others.")
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []], metavar="NAME", help="which; all if none is named")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each goes on, where any time will do")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="how often each is played; the worst of all rounds is printed, and the median of the medians",
    )
    parser.add_argument("--tree", type=Path, help="the source of the gateway that is attacked, if not this one")
    parser.add_argument("--data", type=Path, help="where data directories go: a RAM disk leaves the disk out of it")
    arguments = parser.parse_args()
    env = {} if arguments.tree is None else {"PYTHONPATH": str(arguments.tree), "PYTHONSAFEPATH": "1"}
    failed = 0
    write(COLUMNS, ("-" * 3,) * len(COLUMNS))
    for name in arguments.names or BY_NAME:
        outcomes = [_play(name, arguments.seconds, arguments.data, env) for _ in range(arguments.rounds)]
        verdict = judge(outcomes)
        failed += bool(verdict)
        write((*row(summed(outcomes)), "; ".join(verdict) or "held"))
    return int(failed > 0)


def _play(name: str, seconds: float, data: Path | None, env: dict[str, str]) -> AttackOutcome:
    attack = BY_NAME[name]
    with (
        tempfile.TemporaryDirectory(prefix="trellis-", dir=data) as folder,
        Stage(Path(folder), attack.needs, env) as stage,
    ):
        time.sleep(1)
        return stage.play(attack, seconds, QUIET)


def summed(outcomes: Sequence[AttackOutcome]) -> AttackOutcome:
    """Return *outcomes* of several rounds as one: the round of the median, and the worst waits and costs of all."""
    by_median = sorted(outcomes, key=lambda each: each.wait.moved)
    typical = by_median[len(by_median) // 2]
    waits, costs = [each.wait for each in outcomes], [each.cost for each in outcomes]
    hardest = max(waits, key=lambda each: each.work)
    wait = replace(
        typical.wait,
        usual=max(each.usual for each in waits),
        longest=max(each.longest for each in waits),
        work=hardest.work,
        where=hardest.where,
        lost=sum(each.lost for each in waits),
        sent=sum(each.sent for each in waits),
    )
    cost = replace(
        typical.cost,
        memory=max(each.memory for each in costs),
        left=max(each.left for each in costs),
        descriptors=max(each.descriptors for each in costs),
    )
    return replace(typical, wait=wait, cost=cost)


def judge(outcomes: Sequence[AttackOutcome]) -> list[str]:
    """Return what did not hold: bounds of single rounds, and bounds for an idle machine in all rounds together."""
    faults = [f"FAULT {fault}" for each in outcomes for fault in each.faults()]
    return faults + summed(outcomes).strict()


def row(outcome: AttackOutcome) -> tuple[str, ...]:
    """Return the cells of a row of the table, without the verdict."""
    report, cost, wait = outcome.report, outcome.cost, outcome.wait
    answers = ", ".join(f"{words} ({count})" for words, count in report.answers.most_common(3))
    drops = f"{len(report.dropped)} of {report.connections}"
    drops += f", {max(report.dropped):.1f} s" if report.dropped else ""
    taken = f"{cost.memory:.0f}", f"{cost.left:.0f}", f"{cost.cpu:.1f} ({cost.share:.0%})", str(cost.descriptors)
    waited = (
        f"{wait.moved:+.0%}",
        f"{_typical(wait.idle):.2f} to {_typical(wait.busy):.2f} ms ({wait.work_moved:+.0%})",
        f"{wait.usual:.0f} ms",
        f"{wait.longest:.0f} ms",
        f"{wait.work:.0f} ms ({wait.where})",
    )
    return outcome.attack.name, answers, drops, *taken, *waited, f"{wait.lost} of {wait.sent}"


def _typical(medians: dict[str, float]) -> float:
    return statistics.median(medians.values()) if medians else 0.0


def write(*rows: Iterable[str]) -> None:
    """Print *rows* of a table in Markdown."""
    for cells in rows:
        sys.stdout.write("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
