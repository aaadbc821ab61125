"""Reads many records whose places are known, in the order of the log: in a fifth of the time that single reads take.

It may be called in any thread; what it opens is its own.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .layout import FACTS_SUFFIX, Layout
from .record import BadRecord, verify_checksum
from .segments import Segments

WINDOW: Final = 1 << 16  # bytes that are read at once


def lines_at(segments: Segments, places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield the sequences and lines of the records at *places*: rising sequences, with offsets in their segments.

    Damaged records are reported and skipped; those that are being retired are skipped. Raises `OSError`.
    """
    layout: Layout | None = None
    window: _Window | None = None
    end = 0
    try:
        for seq, offset in places:
            if window is None or seq >= end or segments.layout is not layout:
                if window is not None:
                    window.close()
                layout = segments.layout
                following = bisect_right(layout.first_seqs, seq)
                end = layout.end(following - 1)
                window = _Window(segments, layout.first_seqs[following - 1] if following else 0)
            line = window.line(offset)
            try:
                if not line.startswith(b'{"seq":%d,' % seq):
                    raise BadRecord("another record stands in its place")
                verify_checksum(line)
            except BadRecord as error:
                if not window.is_retired:
                    segments.report_damage(seq, offset, str(error))
                continue
            yield seq, line
    finally:
        if window is not None:
            window.close()


class _Window:
    """A part of the file of a segment that is read sequentially; a file that is gone has nothing."""

    def __init__(self, segments: Segments, first: int) -> None:
        self.is_retired = True
        self._descriptor: int | None = None
        self._data, self._start = b"", 0
        with suppress(FileNotFoundError):
            self._descriptor = segments.opened(first, self._open)

    def line(self, offset: int) -> bytes:
        """The line at *offset*; empty if there is none."""
        at = offset - self._start
        stop = self._data.find(b"\n", at) + 1 if 0 <= at < len(self._data) else 0
        if not stop and self._descriptor is not None:
            at, size, self._start = 0, WINDOW, offset
            while not stop:
                self._data = os.pread(self._descriptor, size, offset)
                stop = self._data.find(b"\n") + 1
                if not stop and len(self._data) < size:
                    return b""
                size *= 8
        return self._data[at:stop]

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        self.is_retired = path.name.endswith(FACTS_SUFFIX)
        return descriptor
