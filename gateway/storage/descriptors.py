"""File descriptors held back for the log: where the process has none left, its own files can still be opened.

Whoever connects takes a descriptor, and the operating system gives no process more than its limit (RLIMIT_NOFILE).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from errno import EMFILE, ENFILE
from typing import TypeVar

# A segment that is opened, its directory that is synced, a segment that is read; and five for an index that is made
# anew: two connections, its journal for each of them, and their shared memory.
RESERVED_DESCRIPTORS = 8

T = TypeVar("T")


def exhausted(error: OSError) -> bool:
    """Whether *error* says that there are no descriptors left, in the process or in the whole system."""
    return error.errno in (EMFILE, ENFILE)


class DescriptorReserve:
    """Holds descriptors back, and lends them to who has to open a file and cannot; any thread may ask."""

    def __init__(self, size: int = RESERVED_DESCRIPTORS) -> None:
        self._size = size
        self._held: list[int] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._held)  # not everybody who opens a log closes it
        self._fill()

    def run(self, call: Callable[[], T]) -> T:
        """What *call* returns; where it finds no descriptor it is called once more, with those held back given up."""
        try:
            return call()
        except OSError as error:
            if not exhausted(error):
                raise
        return self.lend(call)

    def lend(self, call: Callable[[], T]) -> T:
        """What *call* returns with the descriptors given up for it; what is left of them is taken back."""
        with self._lock:
            self._release()
            try:
                return call()
            finally:
                self._fill()

    def refill(self) -> None:
        """Take back what could not be taken back before."""
        if len(self._held) < self._size:
            with self._lock:
                self._fill()

    def close(self) -> None:
        """Give all of them up."""
        with self._lock:
            self._size = 0
            self._release()

    def _fill(self) -> None:
        while len(self._held) < self._size:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:  # others need them now; `refill` asks again
                return

    def _release(self) -> None:
        _close(self._held)


def _close(held: list[int]) -> None:
    while held:
        os.close(held.pop())
