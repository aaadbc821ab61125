"""Reads the log of a member from the disk, again and again, so that its digests are compared with those of others.

In a thread of its own, a block each `PAUSE_SECONDS`: that takes some milliseconds of CPU time for a thousand records,
and reads each byte of ten million records every three hours. New blocks come first, one each `BEHIND_SECONDS`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from gateway.cluster.log_comparison import BLOCK, BlockDigest, LogComparison, digest_of, records_of
from gateway.storage.log import Log
from gateway.storage.record import BadRecord
from gateway.storage.segments import parse_header

PAUSE_SECONDS: Final = 1.0  # between two blocks
BEHIND_SECONDS: Final = 0.1  # the same, while there is something new

logger = logging.getLogger(__name__)


class LogReading:
    """Reads *log*, and gives each block to *comparison* on the loop, by *post*."""

    def __init__(self, log: Log, comparison: LogComparison, post: Callable[[Callable[[], None]], None]) -> None:
        self._log = log
        self._comparison = comparison
        self._post = post
        self._offsets = dict[int, int]()  # of blocks, behind those that were read; hints
        self._newest = log.synced_seq // BLOCK  # block that was read, or is left to the round
        self._next = 0  # block of the round
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-reading", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    # In the thread

    def _run(self) -> None:
        while not self._stopping.wait(
            BEHIND_SECONDS if self._newest < self._log.synced_seq // BLOCK else PAUSE_SECONDS
        ):
            try:
                if (block := self._choose()) and (found := self._read(block)) is not None:
                    self._post(partial(self._comparison.read, found))
                self._post(partial(self._comparison.forget, self._log.segments.first_kept))
            except OSError as error:  # the disk may be failing, or short of descriptors; others report that
                logger.warning("the log cannot be compared now: %s", error)

    def _choose(self) -> int:
        """The next block to read; 0 if none is complete."""
        newest = self._log.synced_seq // BLOCK
        if self._newest < newest:
            self._newest += 1
            return self._newest
        oldest = -(-(self._log.segments.first_kept - 1) // BLOCK) + 1
        self._next = self._next + 1 if oldest <= self._next + 1 <= newest else oldest
        return self._next if self._next <= newest else 0

    def _read(self, block: int) -> BlockDigest | None:
        """The digest of *block*; None if retention has taken some of it."""
        found = digest_of(block, self._lines(block))
        return found if records_of(block)[0] >= self._log.segments.first_kept else None

    def _lines(self, block: int) -> Iterator[bytes]:
        first, last = records_of(block)
        for line in self._log.segments.scan(first - 1, self._offsets.pop(block, 0)):
            try:
                seq, _ = parse_header(line.data)
            except BadRecord:  # its checksum is right, so it was written like this
                continue
            if seq > last:
                return
            yield line.data
            if seq == last:
                self._offsets[block + 1] = line.offset + len(line.data)
                return
