"""Rounds: what a server delivers, and the CPU time its process takes for that."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from .generator import WORKLOADS, Load, Result
from .servers import Server


@dataclass(frozen=True)
class Pace:
    """How long to measure: *rounds* of *seconds* for each server and workload, each after a *warmup* in seconds."""

    rounds: int
    seconds: float
    warmup: float


USUAL = Pace(rounds=4, seconds=2.0, warmup=0.5)
QUICK = Pace(rounds=1, seconds=0.5, warmup=0.2)


@dataclass(frozen=True)
class Round:
    """One server under one workload, once."""

    workload: str
    server: str
    cpu_seconds: float
    result: Result

    @property
    def deliveries_per_cpu_second(self) -> float:
        """The figure that is compared: a second of the server's CPU time buys so many deliveries."""
        return self.result.deliveries / self.cpu_seconds


def cpu_seconds(pid: int) -> float:
    """The CPU time that process *pid*, with all its threads and living children, has taken so far.

    Linux gives each process a clock, named by its number as in clock_getcpuclockid(3): exact, where
    /proc/PID/stat counts in hundredths of a second.
    """
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(time.clock_gettime(~member << 3 | 2) for member in family)


def measure(binary: Path, server: Server, workload: str, pace: Pace) -> Round:
    """Run one round. What the server does within 0.1 s after the last delivery (a flush, say) is counted too."""
    with Load(binary, server.target, WORKLOADS[workload], pace.warmup, pace.seconds) as load:
        before = cpu_seconds(server.pid)
        result = load.run()
        return Round(workload, server.name, cpu_seconds(server.pid) - before, result)


def interleaved(servers: Sequence[Server], workloads: Sequence[str], rounds: int) -> Iterator[tuple[Server, str]]:
    """The order of all rounds: servers in turn (A B, B A, ...), so that a slow minute hits them alike."""
    for workload in workloads:
        able = [server for server in servers if server.target.speaks(WORKLOADS[workload])]
        for number in range(rounds):
            for server in able if number % 2 == 0 else reversed(able):
                yield server, workload
