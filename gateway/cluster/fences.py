"""Which batches count: each gateway's own, in its order and once, and none of a gateway that was started again.

A gateway begins an epoch when it starts, and numbers its batches from 1. A batch counts if it is its gateway's next, or
the first of a later epoch, which ends the one before. All others are ignored, by every gateway alike: a batch that was
sent twice, one after another that was lost, and one of a former life that arrives late. The sender finds its own batch
ignored, and goes back to the one that is awaited.
"""

from __future__ import annotations

from typing import NamedTuple

from .batch import Batch


class Awaited(NamedTuple):
    """The *epoch* of a gateway, and the *number* of its next batch."""

    epoch: int
    number: int


class Fences:
    """What is awaited of each gateway; a function of the batches before."""

    def __init__(self) -> None:
        self._awaited: dict[str, Awaited] = {}

    def awaited(self, gateway: str) -> Awaited | None:
        """What is awaited of *gateway*; None if no batch of it has counted."""
        return self._awaited.get(gateway)

    def admit(self, batch: Batch) -> bool:
        """Whether *batch*, the next in the stream, counts."""
        known = self._awaited.get(batch.gateway)
        if known is None or batch.epoch > known.epoch:
            known = Awaited(batch.epoch, 1)
        if (batch.epoch, batch.number) != known:
            return False
        self._awaited[batch.gateway] = Awaited(batch.epoch, batch.number + 1)
        return True
