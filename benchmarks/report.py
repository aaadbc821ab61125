"""The table of ratios, and the files that keep it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from .generator import WORKLOADS
from .measure import Pace, Round
from .servers import REFERENCE

NOTE = """\
Deliveries per CPU-second of the server process, in thousands: best round (median). "of node" is the ratio of the
bests (of the medians) to the reference server. CPU microseconds are per delivery, and busy is the share of time on
a CPU, both in the best round. The load generator is not the bottleneck while its share is well below 100 %.
Latencies are the lowest of all rounds. Absolute figures drift with the machine: quote ratios.
"""
# fmt: off
HEAD = (
    "work", "server", "k deliveries", "of node", "must",
    "server us", "load us", "server busy", "load busy", "p50 us", "p99 us",
)
# fmt: on


@dataclass(frozen=True)
class Row:
    """All rounds of one server under one workload. Ratios are None where the reference server did not run."""

    workload: str
    server: str
    best: float
    median: float
    ratio_best: float | None
    ratio_median: float | None
    must: float
    server_us: float
    load_us: float
    server_busy: float
    load_busy: float
    p50_us: float
    p99_us: float


def table(rounds: Sequence[Round]) -> list[Row]:
    """One row for each workload and server, in the order in which they were measured."""
    groups: dict[tuple[str, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.workload, each.server), []).append(each)
    return [_row(group, groups.get((workload, REFERENCE))) for (workload, _), group in groups.items()]


def _row(group: Sequence[Round], reference: Sequence[Round] | None) -> Row:
    figures = [each.deliveries_per_cpu_second for each in group]
    others = [each.deliveries_per_cpu_second for each in reference or ()]
    best = max(group, key=lambda each: each.deliveries_per_cpu_second)
    result = best.result
    return Row(
        workload=best.workload,
        server=best.server,
        best=max(figures),
        median=median(figures),
        ratio_best=max(figures) / max(others) if others else None,
        ratio_median=median(figures) / median(others) if others else None,
        must=WORKLOADS[best.workload].must,
        server_us=best.cpu_seconds / result.deliveries * 1e6,
        load_us=result.load_cpu_seconds / result.deliveries * 1e6,
        server_busy=best.cpu_seconds / result.seconds,
        load_busy=result.load_cpu_seconds / result.seconds,
        p50_us=min(each.result.p50_us for each in group),
        p99_us=min(each.result.p99_us for each in group),
    )


def markdown(rows: Sequence[Row], missing: Mapping[str, str], date: datetime) -> str:
    """The table as Markdown, with what was not measured and why."""
    lines = [f"# Benchmarks, {date:%Y-%m-%d %H:%M} UTC, {_machine()}", "", NOTE]
    lines += [f"- {name} was not measured: {reason}" for name, reason in missing.items()]
    lines += ["", _line(HEAD), _line(["---"] * len(HEAD)), *(_line(_cells(row)) for row in rows), ""]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    ratio = "-"
    if row.ratio_best is not None and row.ratio_median is not None:
        ratio = f"{row.ratio_best:.2f} ({row.ratio_median:.2f})"
    return [
        f"{row.workload}: {WORKLOADS[row.workload].title}",
        row.server,
        f"{row.best / 1e3:.0f} ({row.median / 1e3:.0f})",
        ratio,
        f"{row.must}" if row.server == "trellis" else "",
        f"{row.server_us:.2f}",
        f"{row.load_us:.2f}",
        f"{row.server_busy:.0%}",
        f"{row.load_busy:.0%}",
        f"{row.p50_us:.0f}",
        f"{row.p99_us:.0f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def write(folder: Path, rounds: Sequence[Round], missing: Mapping[str, str], pace: Pace) -> tuple[str, Path]:
    """Write the table and all rounds to *folder*, named by the date; return the table and its path."""
    date = datetime.now(UTC)
    rows = table(rounds)
    text = markdown(rows, missing, date)
    everything = {
        "date": date.isoformat(timespec="seconds"),
        "machine": _machine(),
        "pace": asdict(pace),
        "missing": dict(missing),
        "table": [asdict(row) for row in rows],
        "rounds": [asdict(each) for each in rounds],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date:%Y%m%dT%H%M%SZ}.md"
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps(everything, indent=1) + "\n")
    return text, path
