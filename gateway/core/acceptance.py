"""Waiting for the acceptance of a message that may not have its sequence yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .contracts import Ledger, Receipt
from .message import Message

Otherwise = Callable[[], None] | None


class Acceptance:
    """Who waits for messages that were submitted to be taken, and then for *ledger* to have them on disk."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.untaken: dict[Message, list[tuple[Callable[[], None], Otherwise]]] = {}

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
        """Let those who wait for messages of *run*, which were just taken, wait until these are on disk."""
        for message in run:
            for waiter in self.untaken.pop(message, ()):
                self._ledger.when_synced(message.seq, *waiter)
