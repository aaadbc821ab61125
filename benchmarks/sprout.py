"""`python -m benchmarks.sprout`: Sprout, side by side with a relay on the Go library (sprout_relay/).

Each round measures how many items (nodes taken, deliveries, answers) a second of the server's CPU time buys, and how
many a second of the clock. The servers take turns. What only the gateway can do is measured without a ratio.
Exit codes: 0 done, 1 a server did not start, stalled or refused a node.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from .measure import cpu_seconds
from .servers import ROOT, Unavailable
from .sprout_load import Stalled
from .sprout_servers import SERVERS, USUAL, Server
from .sprout_works import WORKS, Work


@dataclass(frozen=True)
class Round:
    """One server under one workload, once: *items* in so many seconds of its CPU and of the clock."""

    work: str
    server: str
    items: int
    cpu_seconds: float
    seconds: float

    @property
    def per_cpu_second(self) -> float:
        """What is compared."""
        return self.items / self.cpu_seconds

    @property
    def per_second(self) -> float:
        """What its users see."""
        return self.items / self.seconds


def measure(name: str, work: Work, server: Server) -> Round:
    """Run one round."""
    with work.prepare(server) as run:
        time.sleep(0.3)
        before, start = cpu_seconds(server.pid), time.perf_counter()
        items = run()
        taken, seconds = cpu_seconds(server.pid) - before, time.perf_counter() - start
    result = Round(name, server.name, items, taken, seconds)
    sys.stderr.write(
        f"{name:10} {server.name:8} {result.per_cpu_second:9.0f} a CPU-s  {result.per_second:9.0f} a second\n"
    )
    return result


def table(rounds: Sequence[Round]) -> str:
    """The best of each, with the ratio to the reference."""
    best: dict[tuple[str, str], list[Round]] = {}
    for each in rounds:
        best.setdefault((each.work, each.server), []).append(each)
    lines = [
        "| work | server | a CPU-second: best (median) | ratio | a second: best | ratio | must |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, server), group in best.items():
        other = best.get((name, "go")) if server != "go" else None
        cpu, wall = [each.per_cpu_second for each in group], [each.per_second for each in group]
        ratios = (
            (
                f"{max(cpu) / max(r.per_cpu_second for r in other):.1f}",
                f"{max(wall) / max(r.per_second for r in other):.1f}",
            )
            if other
            else ("", "")
        )
        must = WORKS[name]().must
        lines.append(
            f"| {WORKS[name]().title} | {server} | {max(cpu):,.0f} ({median(cpu):,.0f}) | {ratios[0]} |"
            f" {max(wall):,.0f} | {ratios[1]} | {must if must and server != 'go' else ''} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sprout", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--servers", nargs="+", choices=SERVERS, help="; ".join(SERVERS))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="where results are written")
    options = parser.parse_args(argv)
    usual = [name for name in USUAL if name != "go" or shutil.which("go")]
    rounds: list[Round] = []
    try:
        for name in options.works:
            work = WORKS[name]()
            for number in range(options.rounds):
                work.fresh()
                names = [each for each in options.servers or usual if work.measures(each)]
                for each in names if number % 2 == 0 else names[::-1]:
                    with SERVERS[each](options.out / "servers") as server:
                        rounds.append(measure(name, work, server))
    except (Unavailable, Stalled, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    date = datetime.now(UTC)
    text = f"# Sprout, {date:%Y-%m-%d %H:%M} UTC\n\n{table(rounds)}\n"
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"sprout-{date:%Y%m%dT%H%M%SZ}.md"
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps([asdict(each) for each in rounds], indent=1) + "\n")
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
