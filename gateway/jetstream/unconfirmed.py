"""The batches that were submitted to the stream and are not known to be in it, in their order.

A batch is sent without asking for an answer, which would cost more than the batch: whoever sends it reads the stream
anyway, and finds it there. If it does not come for `REPEAT_SECONDS`, all are sent again, one after another, each once
the server has answered that the one before is in the stream. Readers of the stream ignore batches that come twice or
too early, by their numbers (`gateway.cluster.turn_position`).

This file sends nothing, and waits for nothing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

REPEAT_SECONDS = 1.0  # after which a batch that has not come back is sent again


class _Batch(NamedTuple):
    data: bytes
    since: float  # when it was submitted


class Unconfirmed:
    """The batches that are not known to be in the stream, no two of them equal; times are in seconds."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self._batches = deque[_Batch]()
        self._last = 0  # position of the last batch that was confirmed

    def add(self, data: bytes, now: float) -> None:
        """Add a batch at the end."""
        self._batches.append(_Batch(data, now))
        self.size += len(data)

    def first(self) -> bytes | None:
        """The batch to send next if all are sent again; None if all are in the stream."""
        return self._batches[0].data if self._batches else None

    def came(self, data: bytes, position: int) -> bool:
        """Note that *data* is in the stream at *position*; return whether that confirms the first batch.

        A copy before its predecessor confirms nothing, since readers ignore it, whenever it is read here.
        """
        if not self._batches or self._batches[0].data != data or position <= self._last:
            return False
        self._batches.popleft()
        self.size -= len(data)
        self._last = position
        return True

    def is_overdue(self, now: float) -> bool:
        """Whether the first batch may be lost."""
        return bool(self._batches) and now - self._batches[0].since > REPEAT_SECONDS
