"""The position in a stream: which batches count, and whose turn it is. It is a function of the stream alone."""

from __future__ import annotations

from .batch import NOBODY, Batch


class Position:
    """The end of the stream so far. The next batch counts if it has the next number, and its lines follow.

    So of several batches with the next number, the first in the stream counts, and all gateways ignore the others: a
    batch that comes twice, one of a gateway whose turn is over, and one of a gateway before its restart.
    """

    def __init__(self) -> None:
        self.number = 0  # of the last batch that counted
        self.holder = NOBODY
        self.next_seq = 0  # 0 until a batch has counted

    def admit(self, batch: Batch) -> bool:
        """Whether *batch*, the next in the stream, counts; if so, move behind it."""
        if batch.number != self.number + 1 or self.next_seq not in (0, batch.first):
            return False
        self.number, self.holder, self.next_seq = batch.number, batch.holder, batch.end
        return True
