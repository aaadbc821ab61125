"""What the machine, or the container, gives this process: memory and file descriptors."""

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
FREED = 16 << 20  # bytes by which the process is larger than it once was: much of that may be free
TRIM_SECONDS = 5  # between two looks whether it is
UNLIMITED = 1 << 20  # descriptors; the kernel's own limit (fs.nr_open) where there is no other
RESERVED = 256  # descriptors for the log, the index, listeners, links and programs; not more than a quarter of all


def memory() -> int:
    """The bytes of memory that there are for this process: the machine's, or its container's if that has fewer."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUPS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            sizes.append(int(path.read_text()))
    return min(sizes)


def resident() -> int:
    """The bytes of memory that this process holds; 0 on systems that do not say."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim_memory() -> None:
    """Give freed memory back to the system; glibc keeps blocks for as long as anything behind them is in use.

    It takes about 0.1 ms for each MiB, and other threads wait where they allocate. Other C libraries need no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Trimmer:
    """Gives freed memory back while there may be much of it. *do* runs a call in a thread, then another one here."""

    def __init__(self, do: Callable[[Callable[[], None], Callable[[object], None]], None]) -> None:
        self._do = do
        self._least = resident()  # ever: what is held now may be in use, and free later without another sign
        self._seconds = 0

    def tick(self) -> None:
        """A second has passed."""
        self._seconds += 1
        if self._seconds % TRIM_SECONDS == 0 and resident() > self._least + FREED:
            self._do(trim_memory, self._done)

    def _done(self, _: object) -> None:
        self._least = min(self._least, resident())


def raise_descriptors() -> int:
    """Allow this process as many open files as the system lets it have; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems refuse what they said is allowed
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return descriptors()


def descriptors() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections() -> int:
    """How many connections of peers there is room for."""
    there_are = descriptors()
    return there_are - min(RESERVED, there_are // 4)
