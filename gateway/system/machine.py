"""The resources that the machine, or the container, gives this process: memory and file descriptors."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# The limit of the process's own container: cgroups version 2, then version 1.
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
STATM = Path("/proc/self/statm")
FREED = 16 << 20  # bytes by which the process has grown since its smallest size: much of that may be free
TRIM_SECONDS = 5  # between two checks
M_ARENA_MAX, ARENAS = -8, 2  # mallopt(3): one for the event loop, one for all other threads
UNLIMITED = 1 << 20  # descriptors; the kernel's own limit (fs.nr_open) if there is no other
RESERVED = 256  # descriptors for the log, the index, listeners, links and programs; not more than a quarter of all


def memory() -> int:
    """Return the memory for this process in bytes: the machine's, or its container's if that has less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUPS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            sizes.append(int(path.read_text()))
    return min(sizes)


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 on systems that do not report it."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def limit_arenas() -> None:
    """Let all threads but the first allocate from one arena; call it before they start.

    glibc gives each thread an arena of its own, up to eight for each core, and returns a page to the system only when
    nothing in it is in use: what a thread needed once stays in its arena. Other C libraries need no such call.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(M_ARENA_MAX, ARENAS)


def trim_memory() -> None:
    """Return freed memory to the system; glibc keeps blocks for as long as anything behind them is in use.

    It takes about 0.1 ms for each MiB, and blocks allocations of other threads. Other C libraries need no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Trimmer:
    """Returns freed memory when there may be much of it. *do* runs a call in a thread, then another on the loop."""

    def __init__(self, do: Callable[[Callable[[], None], Callable[[object], None]], None]) -> None:
        self._do = do
        self._least = resident()  # since the start: memory in use now may become free later
        self._seconds = 0

    def tick(self) -> None:
        """Trim if it is due and the process has grown; called once a second."""
        self._seconds += 1
        if self._seconds % TRIM_SECONDS == 0 and resident() > self._least + FREED:
            self._do(trim_memory, self._done)

    def _done(self, _: object) -> None:
        self._least = min(self._least, resident())


def raise_descriptors() -> int:
    """Raise the limit of open files as far as the system allows; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems refuse a limit that they report as allowed
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptors()


def descriptors() -> int:
    """Return the limit of open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections() -> int:
    """Return how many connections of peers the limit of open files allows."""
    limit = descriptors()
    return limit - min(RESERVED, limit // 4)
