"""The lines of nodes that were read or made lately, so that they are neither read nor signed again."""

from __future__ import annotations

from typing import Final

from gateway.core.bounded import SizedMap

MAX_BYTES: Final = 16 << 20


class LineCache:
    """Lines by the sequences of their records; those that were not asked for longest go first."""

    def __init__(self) -> None:
        self._lines = SizedMap[int, bytes](MAX_BYTES, len, forget=self._forget)
        self._expiring: dict[int, int] = {}  # those of nodes that expire, and when

    def add(self, seq: int, line: bytes, expires: int | None = None) -> None:
        """Keep the *line* of the node at *seq*, which *expires* then (ms)."""
        if seq not in self._lines:
            self._lines[seq] = line
            if expires is not None:
                self._expiring[seq] = expires

    def has_expired(self, seq: int, now: int) -> bool:
        """Whether the node at *seq*, whose line is kept, has expired at *now* (ms)."""
        return self._expiring.get(seq, now + 1) <= now

    def get(self, seq: int) -> bytes | None:
        """The line of the node at *seq*, if it is kept."""
        return self._lines.touch(seq)

    def _forget(self, seq: int, _line: bytes) -> None:
        self._expiring.pop(seq, None)
