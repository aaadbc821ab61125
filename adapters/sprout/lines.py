"""The lines of nodes that were read or made lately, so that they are neither read nor signed again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_BYTES: Final = 16 << 20


class Lines:
    """Lines by the sequences of their records; those that were not asked for longest go first."""

    def __init__(self) -> None:
        self._lines: OrderedDict[int, bytes] = OrderedDict()
        self._expiring: dict[int, int] = {}  # those of nodes that expire, and when
        self._size = 0

    def add(self, seq: int, line: bytes, expires: int | None = None) -> None:
        """Keep the *line* of the node at *seq*, which *expires* then (ms)."""
        if seq not in self._lines:
            self._lines[seq] = line
            self._size += len(line)
            if expires is not None:
                self._expiring[seq] = expires
            while self._size > MAX_BYTES:
                oldest, line = self._lines.popitem(last=False)
                self._size -= len(line)
                self._expiring.pop(oldest, None)

    def has_expired(self, seq: int, now: int) -> bool:
        """Whether the node at *seq*, whose line is kept, has expired at *now* (ms)."""
        return self._expiring.get(seq, now + 1) <= now

    def get(self, seq: int) -> bytes | None:
        """The line of the node at *seq*, if it is kept."""
        line = self._lines.get(seq)
        if line is not None:
            self._lines.move_to_end(seq)
        return line
