"""A cache of encoded nodes (lines), so that no node is read from the log or signed again while it is here."""

from __future__ import annotations

from typing import Final

from gateway.core.bounded_maps import SizedMap

MAX_BYTES: Final = 16 << 20  # of all cached lines together


class LineCache:
    """Encoded nodes by the sequence of their record; the least recently used is dropped first."""

    def __init__(self) -> None:
        self._lines = SizedMap[int, bytes](MAX_BYTES, len, on_drop=self._forget)
        self._expiring: dict[int, int] = {}  # when nodes expire (ms), by sequence

    def add(self, seq: int, line: bytes, expires: int | None = None) -> None:
        """Cache the *line* of the node at *seq*; *expires* is when the node expires (ms since 1970), None for never."""
        if self._lines.get(seq) is None:
            self._lines[seq] = line
            if expires is not None:
                self._expiring[seq] = expires

    def has_expired(self, seq: int, now: int) -> bool:
        """Whether the node at *seq*, whose line is cached, has expired at *now* (ms)."""
        return self._expiring.get(seq, now + 1) <= now

    def get(self, seq: int) -> bytes | None:
        """The line of the node at *seq*; None if it is not cached."""
        return self._lines.touch(seq)

    def _forget(self, seq: int, _line: bytes) -> None:
        self._expiring.pop(seq, None)
