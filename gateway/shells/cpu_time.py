"""CPU times: what a step of the event loop cost, even if other programs had the processor in between."""

from __future__ import annotations

from math import inf
from time import perf_counter, process_time, thread_time
from typing import NamedTuple

MAX_AGE = 0.001  # seconds for which a reading of `CpuClock` is used again


class CpuTime(NamedTuple):
    """The CPU time that something took, in seconds: of the loop's thread alone, and of the whole process."""

    thread: float
    process: float


def cpu_time() -> CpuTime:
    """Return the CPU time so far, which takes two calls to the kernel, 4 us; call it on the loop's thread."""
    return CpuTime(thread_time(), process_time())


def cpu_since(began: CpuTime | None) -> CpuTime | None:
    """Return the CPU time since *began*; None if that was not measured."""
    return None if began is None else CpuTime(thread_time() - began.thread, process_time() - began.process)


class CpuClock:
    """Reads the CPU time so far once for all steps that begin within `MAX_AGE`.

    Such a reading may be older than the step, and then includes work that was done before it. So a step may be charged
    up to `MAX_AGE` more than it took, though never more than it took by the clock.
    """

    def __init__(self) -> None:
        self._last = CpuTime(0.0, 0.0)
        self._read_at = -inf  # (`perf_counter`)

    def begin(self) -> CpuTime:
        """Return the CPU time so far, `MAX_AGE` ago at most."""
        now = perf_counter()
        if now - self._read_at > MAX_AGE:
            self._last, self._read_at = cpu_time(), now
        return self._last
