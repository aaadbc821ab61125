"""The report: tables and pictures as a page of Markdown, and everything that was measured as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from . import charts
from .catalogue import LATENCY, WORKLOADS
from .figures import Row, rows
from .rounds import BenchmarkOutcome
from .workload import ROOT, Bench, Workload

INTRODUCTION = """\
# Performance

Written by `make bench`; do not edit it. CONTRIBUTING.md says how to measure,
[goals.md](goals.md) which goals are not reached and why.

Each workload puts the same load on the gateway and on what it is compared with, in turns (A B, B A, ...). The gateway
runs as a user starts it, with its log on disk, but without rate limits. What counts is how many items (mostly
deliveries) a second of the server's CPU time buys, over all its threads: other work on the machine changes that less
than it changes items a second. Each figure is the median of its rounds. A ratio is that of the medians; in brackets
stand the lowest and the highest ratio of two rounds that stood side by side. Every delivery is checked: it has to
arrive once, in order, where it should. Messages have 100 bytes, and each is sent in a write of its own.

- **lockstep**: a publisher sends again what has arrived at one certain subscriber, so a window that went out together
  comes back together. **free**: it sends again as soon as any subscriber has one of its messages, but takes 20 us for
  each, as a client in an interpreted language does; so a window that came back at once does not go out at once.
- **node** is the topic relay's reference server (npm), **nats** Debian's nats-server with its own protocol, **broker**
  a Streamr broker on the genuine library on Node, **broker-once** the same if it serialised each message only once,
  **go** a relay on Arbor's Go library. **trellis-batch** is the gateway with `streamr.batch_verification`;
  **trellis-50**, **-5k** and **-500k** hold so many Arbor replies from the beginning.
- In pictures of ratios a bar begins at 1, where both are alike, and the scale is logarithmic; a red mark is the goal.
"""
LATENCY_NOTE = """\
Messages are sent at set times, whatever comes back, and a latency is from the time at which a message *should* have
been sent: a server that stands still for a while delays all that was due meanwhile, and all of that is counted.
"behind" is how late 99 of 100 messages were sent at most, which is the generator's own part. The last column is the
ratio of items for each CPU-second, as in the other tables: here no server is at its limit, and none has much to join.
"""
HEAD = ("work", "server", "a CPU-second", "ratio", "goal", "a second", "CPU us each", "generator", "p50 us", "p99 us")
LATENCY_HEAD = ("work", "server", "p50 us", "p99 us", "p99.9 us", "behind us", "ratio of p50", "CPU us each", "ratio")


@dataclass(frozen=True)
class Facts:
    """Where and when it was measured; *note* is what the reader has to know besides."""

    date: datetime
    commit: str
    machine: str
    note: str = ""


def facts(note: str = "") -> Facts:
    """Return those of this moment."""
    return Facts(datetime.now(UTC), commit_of(ROOT), machine(), note)


def commit_of(folder: Path) -> str:
    """Return the commit that is checked out in *folder*, and whether something was changed since."""
    commit = git(folder, "rev-parse", "--short", "HEAD")
    return f"{commit} with changes" if git(folder, "status", "--porcelain") else commit


def git(folder: Path, *command: str) -> str:
    """Return what git says in *folder*; nothing if it fails."""
    said = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=False)
    return said.stdout.strip()


def machine() -> str:
    """Return what the figures depend on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({model}), {system}"


def write(folder: Path, outcome: BenchmarkOutcome, bench: Bench, run_facts: Facts) -> str:
    """Write `performance.md` and its pictures to *folder*; return the text."""
    measured = rows(outcome.rounds, outcome.references)
    pictures = folder / "performance"
    pictures.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION, _circumstances(outcome, bench, run_facts)]
    for section in dict.fromkeys(workload.section for workload in WORKLOADS.values()):
        some = [row for row in measured if WORKLOADS[row.workload].section == section]
        if some:
            parts.append(_section(section, some, outcome.references, pictures))
    text = "\n".join(parts)
    (folder / "performance.md").write_text(text)
    return text


def _circumstances(outcome: BenchmarkOutcome, bench: Bench, run_facts: Facts) -> str:
    others = [each.others for each in outcome.rounds] or [0.0]
    lines = [
        f"Measured {run_facts.date:%Y-%m-%d %H:%M} UTC, commit {run_facts.commit}, on {run_facts.machine};"
        f" {bench.rounds} rounds of {bench.seconds:g} s. Other programs took {median(others):.2f} cores during the"
        f" rounds (median), {max(others):.2f} at most."
    ]
    if run_facts.note:
        lines += ["", f"**{run_facts.note}**"]
    lines.append("")
    lines += [f"- {name} was not measured: {reason}" for name, reason in outcome.missing.items()]
    lines += [f"- {name} broke off: {reason}" for name, reason in outcome.failed.items()]
    lines += [
        f"- {each.workload} on {each.contestant}: not every delivery arrived exactly once: {each.result}"
        for each in outcome.rounds
        if not each.result.exact
    ]
    return "\n".join(lines).rstrip() + "\n"


def _section(title: str, some: Sequence[Row], references: Mapping[str, str], pictures: Path) -> str:
    name = title.lower().replace(" ", "-")
    latency = title == LATENCY
    picture = _latency_picture(title, some) if latency else _ratio_picture(title, some, references)
    lines = [f"## {title}", ""]
    if latency:
        lines += [LATENCY_NOTE]
    if picture:
        (pictures / f"{name}.svg").write_text(picture)
        lines += [f"![{title}](performance/{name}.svg)", ""]
    cells = _latency_cells if latency else _cells
    lines += table(LATENCY_HEAD if latency else HEAD, [cells(row) for row in some])
    return "\n".join([*lines, ""])


def _ratio_picture(title: str, some: Sequence[Row], references: Mapping[str, str]) -> str:
    groups = []
    for name in dict.fromkeys(row.workload for row in some):
        workload, reference = WORKLOADS[name], references.get(name)
        compared = [row for row in some if row.workload == name and row.ratio is not None]
        bars = [
            charts.Bar(row.contestant, row.ratio.median, f"{row.ratio.median:.2f}") for row in compared if row.ratio
        ]
        if bars:
            label = f"{workload.title} / {reference}"
            groups.append(charts.BarGroup(label, bars, workload.must))
    return charts.ratios(f"{title}: ratios to the reference", groups) if groups else ""


def _latency_picture(title: str, some: Sequence[Row]) -> str:
    groups = []
    for name in dict.fromkeys(row.workload for row in some):
        bars = [
            charts.Bar(row.contestant, row.p99_us, f"{row.p50_us:,.0f}, {row.p99_us:,.0f}, {row.p999_us:,.0f} us")
            for row in some
            if row.workload == name
        ]
        groups.append(charts.BarGroup(WORKLOADS[name].title, bars))
    return charts.magnitudes(f"{title}: p99 (written: p50, p99, p99.9)", groups)


def _cells(row: Row) -> list[str]:
    workload = WORKLOADS[row.workload]
    ours = row.contestant == workload.server
    return [
        f"{row.workload}: {workload.title}",
        row.contestant,
        f"{number(row.per_cpu_second)} {workload.unit}",
        str(row.ratio or ""),
        _goal(workload) if ours else "",
        number(row.per_second),
        f"{row.server_us:.2f}",
        f"{row.load_busy:.0%}",
        f"{row.p50_us:,.0f}" if row.p50_us else "",
        f"{row.p99_us:,.0f}" if row.p99_us else "",
    ]


def _latency_cells(row: Row) -> list[str]:
    return [
        f"{row.workload}: {WORKLOADS[row.workload].title}",
        row.contestant,
        *(f"{value:,.0f}" for value in (row.p50_us, row.p99_us, row.p999_us, row.delay_us)),
        str(row.ratio_p50 or ""),
        f"{row.server_us:.2f}",
        str(row.ratio or ""),
    ]


def _goal(workload: Workload) -> str:
    if workload.must_rate is not None:
        return f"{number(workload.must_rate)} a second"
    return "" if workload.must is None else f"{workload.must:g}"


def number(value: float) -> str:
    """Return *value* with three digits or two behind the point: 1.23 M, 45.6 k, 789, 0.12."""
    size, unit = next((each for each in ((1e6, " M"), (1e3, " k")) if value >= 0.9995 * each[0]), (1.0, ""))
    scaled = value / size
    return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{unit}"


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of Markdown."""
    return [_line(head), "|".join(["", *["---"] * len(head), ""]), *map(_line, body)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def keep(folder: Path, outcome: BenchmarkOutcome, bench: Bench, run_facts: Facts) -> Path:
    """Write everything that was measured as JSON, named by the date; return the path."""
    everything = {
        "date": run_facts.date.isoformat(timespec="seconds"),
        "commit": run_facts.commit,
        "machine": run_facts.machine,
        "note": run_facts.note,
        "pace": {"rounds": bench.rounds, "seconds": bench.seconds, "warmup": bench.warmup},
        "missing": outcome.missing,
        "failed": outcome.failed,
        "references": outcome.references,
        "table": [asdict(row) for row in rows(outcome.rounds, outcome.references)],
        "rounds": [asdict(each) for each in outcome.rounds],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_facts.date:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(everything, indent=1) + "\n")
    return path
