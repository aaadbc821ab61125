"""The log and the index together, as the bus sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.contracts import Receipt
from gateway.core.message import Message

from .index import Index
from .log import Log
from .record import Entry
from .segments import Segments


class IndexedLog(Log):
    """A log that adds entries to the index when they are appended: queries find them before they are on disk.

    It implements `gateway.core.contracts.Ledger`. *clock* gives ms since 1970; *post* runs a call on the loop;
    *options* are those of `Log`.
    """

    def __init__(
        self,
        index: Index,
        segments: Segments,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], int],
        **options: Any,
    ) -> None:
        super().__init__(segments, post, clock, **options)
        self.on_synced = index.add_synced
        self.find: Callable[[str], Receipt | None] = index.find
        self.find_message: Callable[[str], Message | None] = index.find_message
        self._add_unapplied = index.add_unapplied

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append *entries* to the log, and add them to the index."""
        super().extend(entries)
        self._add_unapplied(entries)

    def adopt(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Append *lines* of another gateway to the log, and add their *entries* to the index."""
        super().adopt(entries, lines)
        self._add_unapplied(entries)
