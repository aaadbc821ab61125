"""Answers the announces of one connection.

An announce is answered once all of its nodes that are kept are on disk: with status 1 only if none of them was known,
taken or kept waiting, or if the log cannot be written; with status 4 if a direct message reached nobody, or if there
was no room for nodes that wait for others.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.wire.codec import StatusCode
from gateway.core.bounded_maps import BoundedMap

from .batch import NodeBatch

ANSWER_TIMEOUT: Final = 20_000  # ms after which an announce is answered in any case; genuine clients wait for a minute
MAX_UNANSWERED: Final = (
    4096  # announces that are answered later: one and the same node can be announced again and again
)

_PER_UNANSWERED: Final = 600  # bytes


class Acknowledgements:
    """The announces of *session* that are not answered yet: their nodes wait for others, or for the disk."""

    def __init__(self, session: SproutConnection) -> None:
        self._session = session
        self._awaited: dict[str, list[NodeBatch]] = {}  # by the node whose fate decides
        self._unanswered = BoundedMap[NodeBatch, None](
            MAX_UNANSWERED, self._answer_oldest
        )  # of these, the complete ones
        self._statuses: list[tuple[int, int]] = []  # ids and codes that wait for the disk
        self._statuses_seq = 0

    @property
    def size(self) -> int:
        """The approximate memory that these announces take, in bytes."""
        return _PER_UNANSWERED * len(self._unanswered)

    def clear(self) -> None:
        """Forget all of them."""
        self._awaited.clear()
        self._unanswered.clear()

    def tick(self, now: int) -> None:
        """Answer the announces whose deadline has passed."""
        for batch in [batch for batch in self._unanswered if batch.deadline <= now]:
            self._unanswered.pop(batch)
            self._answer(batch)
        self.wait_for_disk()

    def batch_ended(self, batch: NodeBatch) -> None:
        """Answer the complete *batch* if it is an announce and none of its nodes waits."""
        if batch.waiting_ids:
            batch.deadline = self._session.bus.clock() + ANSWER_TIMEOUT
            self._unanswered[batch] = None
        elif batch.id is not None:
            self._answer(batch)

    def await_node(self, batch: NodeBatch, id: str) -> None:
        """Delay the answer to *batch* until the outcome of its node *id* is known."""
        batch.has_waited = True
        if batch.id is not None:
            batch.waiting_ids.add(id)
            self._awaited.setdefault(id, []).append(batch)

    def node_settled(self, id: str, status: int, seq: int = 0, *, taken: bool = False) -> None:
        """Answer what waits for the outcome of the node *id*: it was *taken*, and logged at *seq*, or given up."""
        for batch in self._awaited.pop(id, ()):
            batch.waiting_ids.discard(id)
            batch.seq, batch.status = max(batch.seq, seq), max(batch.status, status)
            batch.taken = batch.taken or taken
            if not batch.waiting_ids and batch in self._unanswered:
                self._unanswered.pop(batch)
                self._answer(batch)

    def _answer_oldest(self, batch: NodeBatch, _: None) -> None:
        """Answer the oldest announce as it stands, since too many wait."""
        self._answer(batch)

    def _answer(self, batch: NodeBatch) -> None:
        """Answer an announce. Status 0 says that all of its nodes that are not refused are on disk."""
        status = max(batch.status, StatusCode.UNKNOWN_NODE) if batch.waiting_ids else batch.status
        for id in batch.waiting_ids:
            if others := [other for other in self._awaited.pop(id, ()) if other is not batch]:
                self._awaited[id] = others
        batch.waiting_ids.clear()
        assert batch.id is not None
        self._answer_when_synced(batch.seq, batch.id, status if batch.taken or status else StatusCode.MALFORMED)

    def _answer_when_synced(self, seq: int, id: int, code: int) -> None:
        """Answer with *code* once everything up to *seq* is on disk; announces that arrived together wait together."""
        if not seq:
            self._session.status(id, code)
            return
        if not self._statuses:
            self._statuses_seq = 0
        self._statuses.append((id, code))
        self._statuses_seq = max(self._statuses_seq, seq)

    def wait_for_disk(self) -> None:
        """Answer the announces that arrived together once they are on disk.

        While more follows of what the peer sent with them, nobody hurries: all of it is then written and synced at
        once, instead of a few nodes at a time.
        """
        if self._statuses:
            promised, self._statuses = self._statuses, []
            self._session.bus.ledger.when_synced(
                self._statuses_seq,
                partial(self._session.statuses, promised),
                partial(self._session.close, 1011, "the log cannot be written; it is unknown what will be in it"),
                hurry=not self._session.more_follows,
            )
