"""How the announces of one connection are answered.

An announce is answered once all of it that can be is on disk: status 1 only where nothing of it was known, taken or
kept waiting, or where the log cannot be written, status 4 where a direct message reached nobody, or where there was no
more room for nodes that wait for others.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from adapters.sprout.wire.codec import StatusCode
from gateway.core.bounded import BoundedMap

from .batch import Batch
from .connection import Connection

PROMPT: Final = 20_000  # ms until an announce is answered in any case; genuine clients wait for a minute
MAX_LATE: Final = 4096  # announces that are answered later: one and the same node can be announced again and again

_PER_LATE: Final = 600  # bytes


class Acknowledgements:
    """The announces of *session* that are not answered yet: their nodes wait for others, or they for the disk."""

    def __init__(self, session: Connection) -> None:
        self._session = session
        self._owed: dict[str, list[Batch]] = {}  # announces that are answered once a node has been taken, or is lost
        self._late = BoundedMap[Batch, None](MAX_LATE, self._late_enough)  # of these, those that have ended
        self._promised: list[tuple[int, int]] = []  # the ids and codes of statuses that wait for the disk
        self._promised_seq = 0

    @property
    def size(self) -> int:
        """About how many bytes are kept here for the peer."""
        return _PER_LATE * len(self._late)

    def clear(self) -> None:
        """Nothing is waited for any more."""
        self._owed.clear()
        self._late.clear()

    def tick(self, now: int) -> None:
        """Answer what waits too long for its answer."""
        for batch in [batch for batch in self._late if batch.deadline <= now]:
            self._answer(batch)
        self.wait_for_disk()

    def ended(self, batch: Batch) -> None:
        """All of a batch has come: answer it, if it is an announce and none of its nodes waits."""
        if batch.waits:
            batch.deadline = self._session.bus.clock() + PROMPT
            self._late[batch] = None
        elif batch.id is not None:
            self._answer(batch)

    def owe(self, batch: Batch, id: str) -> None:
        """The node *id* of *batch* waits: an announce is answered when its fate is known."""
        batch.waited = True
        if batch.id is not None:
            batch.waits.add(id)
            self._owed.setdefault(id, []).append(batch)

    def settle(self, id: str, status: int, seq: int = 0, *, taken: bool = False) -> None:
        """The node *id* waits no more: it was *taken*, and stands at *seq*, or is lost; answer what waited for that."""
        for batch in self._owed.pop(id, ()):
            batch.waits.discard(id)
            batch.seq, batch.status = max(batch.seq, seq), max(batch.status, status)
            batch.taken = batch.taken or taken
            if not batch.waits and batch in self._late:
                self._answer(batch)

    def _late_enough(self, batch: Batch, _: None) -> None:
        """So many announces wait for their answer that the oldest gets it as things are."""
        self._answer(batch)

    def _answer(self, batch: Batch) -> None:
        """Answer an announce. Status 0 says that all of it that is not refused is on disk."""
        self._late.pop(batch)
        status = max(batch.status, StatusCode.UNKNOWN_NODE) if batch.waits else batch.status
        for id in batch.waits:
            if others := [other for other in self._owed.pop(id, ()) if other is not batch]:
                self._owed[id] = others
        batch.waits.clear()
        assert batch.id is not None
        self._promise(batch.seq, batch.id, status if batch.taken or status else StatusCode.MALFORMED)

    def _promise(self, seq: int, id: int, code: int) -> None:
        """Answer with *code* once everything up to *seq* is on disk; announces that arrive together wait together."""
        if not seq:
            self._session.status(id, code)
            return
        if not self._promised:
            self._promised_seq = 0
        self._promised.append((id, code))
        self._promised_seq = max(self._promised_seq, seq)

    def wait_for_disk(self) -> None:
        """What arrived together is read: answer its announces when the disk has them."""
        if self._promised:
            promised, self._promised = self._promised, []
            self._session.bus.ledger.when_synced(
                self._promised_seq,
                partial(self._session.statuses, promised),
                partial(self._session.close, 1011, "the log cannot be written; nobody knows what will be in it"),
            )
