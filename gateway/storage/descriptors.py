"""File descriptors reserved for the log: its files can be opened even when the process has no descriptors left.

Every connection takes a descriptor, and the operating system limits them for each process (RLIMIT_NOFILE).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from errno import EMFILE, ENFILE
from typing import TypeVar

# One each to open a segment, to sync its directory and to read a segment; and five to rebuild the index: two
# connections, a journal for each of them, and their shared memory.
RESERVED_DESCRIPTORS = 8

T = TypeVar("T")


def exhausted(error: OSError) -> bool:
    """Whether *error* says that no descriptors are left, in the process or in the whole system."""
    return error.errno in (EMFILE, ENFILE)


class DescriptorReserve:
    """Reserves descriptors, and frees them for a call that finds none left; any thread may use it."""

    def __init__(self) -> None:
        self._size = RESERVED_DESCRIPTORS
        self._held: list[int] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._held)  # for callers that do not close their log
        self._fill()

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of *call*; if it finds no descriptor, free the reserve and call it once more."""
        try:
            return call()
        except OSError as error:
            if not exhausted(error):
                raise
        return self.lend(call)

    def lend(self, call: Callable[[], T]) -> T:
        """Return the result of *call*, with the reserve freed for it; then reserve what is left again."""
        with self._lock:
            self._release()
            try:
                return call()
            finally:
                self._fill()

    def refill(self) -> None:
        """Reserve the descriptors that were not available before."""
        if len(self._held) < self._size:
            with self._lock:
                self._fill()

    def close(self) -> None:
        """Free the reserve for good."""
        with self._lock:
            self._size = 0
            self._release()

    def _fill(self) -> None:
        while len(self._held) < self._size:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:  # none is free now; `refill` tries again
                return

    def _release(self) -> None:
        _close(self._held)


def _close(held: list[int]) -> None:
    while held:
        os.close(held.pop())
