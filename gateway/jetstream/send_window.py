"""The batches that were submitted to the stream and are not known to be in it, in their order.

A batch is in the stream when the server acknowledged it behind the batch before it. If an answer is lost, or says that
a batch came to stand before its predecessor, everything from there on is sent again, once no answer is outstanding.
Readers of the stream ignore batches that come twice or too early, by their numbers (`gateway.cluster.turn_position`).

This file sends nothing, and waits for nothing.
"""

from __future__ import annotations

from collections import deque

MAX_IN_FLIGHT = 4  # batches


class OutgoingBatch:
    """Bytes to send; `position` is where a server has put them into the stream, None until it has acknowledged them."""

    __slots__ = ("data", "position", "sent")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sent = False
        self.position: int | None = None


class SendWindow:
    """Decides what to send next: `MAX_IN_FLIGHT` batches at once, and all again from the first that was lost."""

    def __init__(self) -> None:
        self.size = 0  # bytes that are not known to be in the stream
        self._items: deque[OutgoingBatch] = deque()
        self._in_flight = 0
        self._last = 0  # position of the last batch that is in the stream
        self._is_broken = False

    def __len__(self) -> int:
        """The batches that are not known to be in the stream."""
        return len(self._items)

    @property
    def is_stalled(self) -> bool:
        """Whether nothing is sent or awaited until `resume` is called."""
        return self._is_broken and not self._in_flight

    def add(self, data: bytes) -> None:
        """Add a batch at the end."""
        self._items.append(OutgoingBatch(data))
        self.size += len(data)

    def next(self) -> OutgoingBatch | None:
        """The batch to send now; None if there is none, or too many are in flight."""
        if self._is_broken or self._in_flight >= MAX_IN_FLIGHT:
            return None
        for item in self._items:
            if not item.sent:
                item.sent = True
                self._in_flight += 1
                return item
        return None

    def acknowledged(self, item: OutgoingBatch, position: int) -> None:
        """Note that *item*, which was in flight, is in the stream at *position*, as the server says."""
        self._in_flight -= 1
        item.position = position
        while self._items and (first := self._items[0]).position is not None:
            if first.position <= self._last:
                self._is_broken = True
                return
            self._last = first.position
            self.size -= len(first.data)
            self._items.popleft()

    def failed(self) -> None:
        """Note that the answer to a batch in flight was lost, so the batch may be in the stream or not."""
        self._in_flight -= 1
        self._is_broken = True

    def resume(self) -> None:
        """Begin again with the first batch that is not known to be in the stream."""
        self._is_broken = False
        for item in self._items:
            item.sent, item.position = False, None
