"""What an attack costs: the memory, CPU time, descriptors and threads of the gateway, and what honest peers notice."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.forked import duplex, fork

from . import honest
from .honest import DRAIN, Sample

LOOK = 0.05  # seconds between two looks at the gateway's process
MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """What the gateway's process used: MiB beyond its use before, seconds of CPU time, and the most it had open.

    `left` is how much of the memory it still had after a rest (`Meter.read`); `share` is the CPU time divided by the
    time that passed.
    """

    memory: float
    left: float
    cpu: float
    share: float
    descriptors: int
    threads: int


class Meter:
    """Watches process *pid* from when it is made until `read`."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._path = Path(f"/proc/{pid}")
        self._before = self._process.memory_info().rss
        with suppress(OSError):
            (self._path / "clear_refs").write_text("5")  # proc(5): the peak begins anew
        self._cpu, self._begin = self._cpu_seconds(), time.monotonic()
        self._descriptors = self._threads = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def read(self, settle: float) -> Cost:
        """Return what the process used up to now; `left` is read after *settle* seconds."""
        cpu, peak = self._cpu_seconds() - self._cpu, self._peak()
        share = cpu / (time.monotonic() - self._begin)
        self._over.set()
        self._thread.join()
        time.sleep(settle)
        left = self._process.memory_info().rss - self._before
        over = round(max(0, peak - self._before) / MIB, 1), round(max(0, left) / MIB, 1)
        return Cost(*over, round(cpu, 2), round(share, 2), self._descriptors, self._threads)

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def _peak(self) -> int:
        """Return the largest resident size since `clear_refs` was written, in bytes."""
        lines = (self._path / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) << 10

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            with suppress(psutil.Error, OSError):
                self._descriptors = max(self._descriptors, self._process.num_fds())
                self._threads = max(self._threads, self._process.num_threads())


@dataclass(frozen=True)
class HonestImpact:
    """What honest peers noticed: the median wait of each kind before the attack and during it, and what was lost.

    `usual` is the longest wait in quiet time, `longest` that during the attack. `work` is the most CPU time that the
    gateway used while a peer, of the kind `where`, waited: on a machine where nothing else runs, `longest` is about
    as much. `idle` and `busy` are the medians of that CPU time before and during. All times are in ms.
    """

    before: dict[str, float]
    during: dict[str, float]
    idle: dict[str, float]
    busy: dict[str, float]
    usual: float
    longest: float
    work: float
    where: str
    lost: int
    sent: int

    @property
    def moved(self) -> float:
        """Return by how much the medians of all kinds moved: 0.1 is a tenth longer."""
        return _moved(self.before, self.during)

    @property
    def work_moved(self) -> float:
        """Return the same for the gateway's CPU time while they waited, which does not depend on what else runs."""
        return _moved(self.idle, self.busy)


def _moved(before: dict[str, float], during: dict[str, float]) -> float:
    ratios = [during[kind] / before[kind] for kind in during.keys() & before.keys() if before[kind]]
    return statistics.median(ratios) - 1 if ratios else 0.0


class HonestProcess:
    """The honest peers' process; everything it measured since the last `take`."""

    def __init__(self, http: str, sprout: str, pid: int, key: str | None, env: Mapping[str, str]) -> None:
        self._connection, theirs = duplex()
        self._process = fork(honest.run, http, sprout, pid, key, dict(env), theirs)
        theirs.close()
        assert self._answer() == "ready", "the honest peers did not begin"

    def take(self) -> list[Sample]:
        """Return all samples since the last call."""
        self._connection.send(None)
        samples: list[Sample] = self._answer()
        return samples

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join(10)
        self._connection.close()

    def _answer(self) -> Any:
        assert self._connection.poll(2 * DRAIN), "the honest peers do not answer"
        try:
            return self._connection.recv()
        except EOFError:
            raise AssertionError("the honest peers have ended") from None


def compare(samples: Sequence[Sample], begin: float, end: float) -> HonestImpact:
    """Compare the samples from *begin* to *end* (time.monotonic) with all others, which are of quiet time."""
    during = [sample for sample in samples if begin <= sample[1] <= end]
    quiet = [sample for sample in samples if not begin <= sample[1] <= end]
    work, where = max(((work * 1000, kind) for kind, *_, work in during if work is not None), default=(0.0, ""))
    lost = sum(sample[2] is None for sample in samples)
    waits = round(_longest(quiet), 1), round(_longest(during), 1), round(work, 1)
    return HonestImpact(
        medians(quiet), medians(during), cpu_medians(quiet), cpu_medians(during), *waits, where, lost, len(samples)
    )


def _longest(samples: Sequence[Sample]) -> float:
    return max((seconds * 1000 for _, _, seconds, _ in samples if seconds is not None), default=0.0)


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the median waits by kind, in milliseconds."""
    return _medians((kind, seconds) for kind, _, seconds, _ in samples)


def cpu_medians(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the medians of the gateway's CPU time during these waits, by kind, in milliseconds."""
    return _medians((kind, work) for kind, *_, work in samples)


def _medians(figures: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    kinds: dict[str, list[float]] = {}
    for kind, seconds in figures:
        if seconds is not None:
            kinds.setdefault(kind, []).append(seconds * 1000)
    return {kind: round(statistics.median(found), 2) for kind, found in sorted(kinds.items())}
