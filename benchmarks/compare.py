"""`python -m benchmarks.compare REF`: this tree beside another commit, round by round, as a table of ratios.

The other commit is checked out into a temporary worktree. It runs in this tree's environment if both pin the same
packages, else in one that is made of its own lock. Only the gateway is measured, and the load is this tree's.
Exit codes: 0 done; 1 something could not be measured, or a delivery did not arrive exactly once; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .__main__ import add_options, bench_of, chosen, exit_on_sigterm
from .catalogue import WORKLOADS
from .figures import Row, rows
from .page import Facts, facts, git, keep, number, table
from .rounds import BenchmarkOutcome, Contestant, run
from .servers import trellis
from .workload import ROOT, Unavailable, Workload

LOCK = "requirements.lock"
HEAD = ("work", "here, a CPU-second", "there", "ratio", "ratio of items a second", "ratio of p50")


@dataclass(frozen=True)
class Checkout:
    """A checked-out commit, and the interpreter that has its packages."""

    name: str
    root: Path
    python: str


@contextmanager
def checked_out(ref: str) -> Iterator[Checkout]:
    """Check *ref* out into a temporary worktree, with an environment; raise `Unavailable` if that fails."""
    commit = git(ROOT, "rev-parse", "--short", "--verify", f"{ref}^{{commit}}")
    if not commit:
        raise Unavailable(f"{ref} is no commit")
    with tempfile.TemporaryDirectory(prefix="trellis-bench-") as name:
        root = Path(name) / "tree"
        _command(ROOT, "git", "worktree", "add", "--quiet", "--detach", str(root), commit)
        try:
            yield Checkout(commit, root, _python(root))
        finally:
            _command(ROOT, "git", "worktree", "remove", "--force", str(root))


def _python(root: Path) -> str:
    if (root / LOCK).read_bytes() == (ROOT / LOCK).read_bytes():
        return sys.executable
    python = str(root / ".venv" / "bin" / "python")
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    _command(root, sys.executable, "-m", "venv", ".venv")
    _command(root, *install, "--require-hashes", "-r", LOCK)  # `make env` of old commits fails with newer packages
    _command(root, *install, "--editable", ".")
    return python


def _command(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")


def entrants(workload: Workload, there: Checkout) -> list[Contestant]:
    """Return the gateway of this tree and that of the other one, under the same load."""
    other = partial(trellis, root=there.root, python=there.python)
    return [Contestant("here", trellis, workload.load), Contestant(there.name, other, workload.load, is_reference=True)]


def report(outcome: BenchmarkOutcome, run_facts: Facts) -> str:
    """Return the table."""
    by_work: dict[str, dict[str, Row]] = {}
    for row in rows(outcome.rounds, outcome.references):
        by_work.setdefault(row.workload, {})[row.contestant] = row
    body = [_cells(name, found, outcome.references) for name, found in by_work.items()]
    lines = [f"# {run_facts.commit} (here) beside {', '.join(sorted(set(outcome.references.values())))}", ""]
    lines += [
        f"{run_facts.date:%Y-%m-%d %H:%M} UTC, {run_facts.machine}. Ratios of medians (lowest to highest of a round).",
        "",
    ]
    lines += [f"- {name} was not measured: {reason}" for name, reason in {**outcome.missing, **outcome.failed}.items()]
    return "\n".join([*lines, *table(HEAD, body), ""])


def _cells(name: str, found: Mapping[str, Row], references: Mapping[str, str]) -> list[str]:
    here, there = found.get("here"), found.get(references[name])
    return [
        f"{name}: {WORKLOADS[name].title}",
        *(number(row.per_cpu_second) if row else "" for row in (here, there)),
        *(str(ratio or "") for ratio in ((here.ratio, here.ratio_per_second, here.ratio_p50) if here else ("",) * 3)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.partition("\n")[0])
    parser.add_argument("ref", help="the commit to compare with: a branch, a tag, HEAD~3")
    add_options(parser)
    options = parser.parse_args(argv)
    bench, run_facts, outcome = bench_of(options), facts(), BenchmarkOutcome()
    try:
        with checked_out(options.ref) as there:
            for name in chosen(options.workloads):
                if WORKLOADS[name].server == "trellis":
                    run(name, WORKLOADS[name], entrants(WORKLOADS[name], there), bench, outcome)
    except Unavailable as reason:
        sys.stderr.write(f"{reason}\n")
        return 1
    text = report(outcome, run_facts)
    path = keep(options.out, outcome, bench, run_facts)
    path.with_suffix(".md").write_text(text)
    sys.stdout.write(f"{text}\nKept in {path}\n")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
