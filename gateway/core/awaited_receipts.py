"""Waiting for the acceptance of a message that may not have its sequence yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from .contracts import Ledger, Receipt
from .message import Message

Otherwise = Callable[[], None] | None

logger = logging.getLogger(__name__)


class Acceptance:
    """Callers that wait until submitted messages are taken, and then until *ledger* has them on disk."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.elsewhere = False  # whether another gateway accepts now, so that what arrives here waits
        self.on_waiting: Callable[[], None] = lambda: None  # called when a session waits until it may publish
        self.untaken: dict[Message, list[tuple[Callable[[], None], Otherwise]]] = {}

    @property
    def obstacle(self) -> str:
        """Why the log accepts nothing, although it can be written."""
        return "another gateway accepts now" if self.elsewhere else "the disk does not keep up"

    def when_accepted(
        self, published: Message | Receipt, callback: Callable[[], None], otherwise: Otherwise = None
    ) -> None:
        """Call *callback* once what was *published* now or before was taken and is on disk; at once if it is.

        *otherwise* is called instead if the disk has failed for so long that the outcome is unknown.
        """
        if isinstance(published, Message) and not published.seq:
            self.untaken.setdefault(published, []).append((callback, otherwise))
        else:
            self._ledger.when_synced(published.seq, callback, otherwise)

    def taken(self, run: Sequence[Message]) -> None:
        """Wait for the disk once, for all who wait for messages of *run*, which were just taken."""
        waiting = [waiter for message in run for waiter in self.untaken.pop(message, ())]
        if len(waiting) > 1 and all(otherwise is not None for _, otherwise in waiting):
            accepted, uncertain = zip(*waiting, strict=True)
            waiting = [(partial(_call, accepted), partial(_call, uncertain))]
        for waiter in waiting:
            self._ledger.when_synced(run[-1].seq, *waiter)

    def forget(self, message: Message) -> None:
        """Stop waiting for *message*: it was refused."""
        self.untaken.pop(message, None)


def _call(waiting: Sequence[Callable[[], None]]) -> None:
    for call in waiting:
        try:
            call()
        except Exception:  # a bug in the callback; the others are still called
            logger.exception("a callback that waited for the disk failed; the others are called")
