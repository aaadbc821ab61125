"""Rounds: contestants take turns under a workload; what they deliver and the CPU time for it are measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from .servers import SERVERS, BenchmarkServer, Start
from .workload import Bench, Load, LoadError, Round, Unavailable, Workload

REST_SECONDS = 0.2  # between two rounds: what the one before left to do is done
Entrant = TypeVar("Entrant")


@dataclass(frozen=True)
class Contestant:
    """A server of its own, and the load it is under."""

    name: str
    start: Start
    load: Load
    is_reference: bool = False


@dataclass
class BenchmarkOutcome:
    """All rounds, and what was not measured, with the reason."""

    rounds: list[Round] = field(default_factory=list)
    references: dict[str, str] = field(
        default_factory=dict
    )  # by workload: the contestant that others are compared with
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, each: Round | None) -> None:
        """Keep a round, and say what came of it."""
        if each is None:
            return
        self.rounds.append(each)
        fault = "" if each.result.exact else f"   FAULT: {each.result}"
        sys.stderr.write(
            f"{each.workload:16} {each.contestant:12} {each.per_cpu_second / 1e3:9.1f} k a CPU-s"
            f" {each.per_second / 1e3:9.1f} k a second  others {each.others:.0%}{fault}\n"
        )

    @property
    def good(self) -> bool:
        """Whether something was measured, no round broke off, and every item arrived exactly once."""
        return bool(self.rounds) and not self.failed and all(each.result.exact for each in self.rounds)


def contestants(workload: Workload) -> list[Contestant]:
    """Return the gateway, and what it is compared with."""
    start = SERVERS[workload.server]
    found = [Contestant(workload.server, start, workload.load)]
    found += [Contestant(name, SERVERS[name], workload.load, name == workload.peers[0]) for name in workload.peers]
    if workload.beside is not None:
        found.append(Contestant(workload.beside_title, start, workload.beside, is_reference=True))
    return found


def run(name: str, workload: Workload, entrants: Sequence[Contestant], bench: Bench, outcome: BenchmarkOutcome) -> None:
    """Measure *workload*, called *name*, and add to *outcome*."""
    for entrant in entrants:
        if entrant.is_reference:
            outcome.references[name] = entrant.name
    with ExitStack() as stack:
        servers: dict[str, BenchmarkServer] = {}
        if not workload.fresh:
            servers = _start_all(entrants, bench, stack, outcome)
        for number in range(bench.rounds):
            for load in {id(entrant.load): entrant.load for entrant in entrants}.values():
                load.renew(bench)
            for entrant in in_turn(entrants, number):
                try:
                    if workload.fresh:
                        with entrant.start(bench, _process_name(entrant)) as server:
                            outcome.add(_measure(name, entrant, number, server, bench))
                    elif entrant.name in servers:
                        outcome.add(_measure(name, entrant, number, servers[entrant.name], bench))
                except Unavailable as reason:
                    outcome.missing[entrant.name] = str(reason)
                except (LoadError, OSError) as error:
                    outcome.failed[f"{name} on {entrant.name}"] = str(error)
                    sys.stderr.write(f"{name:16} {entrant.name:12} FAILED: {error}\n")


def _start_all(
    entrants: Sequence[Contestant], bench: Bench, stack: ExitStack, outcome: BenchmarkOutcome
) -> dict[str, BenchmarkServer]:
    """Start a server for each contestant; those that cannot be started are missing."""
    servers = {}
    for entrant in entrants:
        try:
            servers[entrant.name] = stack.enter_context(entrant.start(bench, _process_name(entrant)))
        except Unavailable as reason:
            outcome.missing[entrant.name] = str(reason)
    return servers


def _process_name(entrant: Contestant) -> str:
    """Return a name for its files."""
    return "".join(letter if letter.isalnum() else "-" for letter in entrant.name)


def in_turn(entrants: Sequence[Entrant], number: int) -> Iterator[Entrant]:
    """Yield in the order of round *number* (A B, B A, ...), so that a slow minute meets all alike."""
    yield from entrants if number % 2 == 0 else reversed(entrants)


def _measure(name: str, entrant: Contestant, number: int, server: BenchmarkServer, bench: Bench) -> Round | None:
    """Return the round; None if the server cannot do that."""
    if not entrant.load.runs_on(server):
        return None
    with entrant.load.open(server, bench) as go:
        time.sleep(REST_SECONDS)
        machine, cpu, start = machine_seconds(), cpu_seconds(server.pid), time.monotonic()
        result = go()
        spent, seconds = cpu_seconds(server.pid) - cpu, time.monotonic() - start
        others = (machine_seconds() - machine - spent - result.load_cpu_seconds) / seconds
    return Round(name, entrant.name, number, spent, result, max(others, 0.0))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that process *pid*, with all its threads and living children, has taken so far.

    Linux gives each process a clock, named by its number as in clock_getcpuclockid(3): exact, where
    /proc/PID/stat counts in hundredths of a second.
    """
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(time.clock_gettime(~member << 3 | 2) for member in family)


def machine_seconds() -> float:
    """Return the CPU time that all programs of the machine have taken so far."""
    times: Mapping[str, float] = psutil.cpu_times()._asdict()
    return sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))
