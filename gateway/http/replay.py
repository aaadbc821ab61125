"""What a listener missed: the messages after a sequence, from the log, until the bus delivers the rest.

Laws of this file. A boundary separates what comes from the log from what comes from the bus: every message below it is
read from the log, and every other one was delivered by the bus, so none is missing and none comes twice. The boundary
is set when the log has no more, and is reached once everything below it is on disk. If the bus delivers more until then
than may be held, that is dropped, and read from the log up to a new boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.core.message import Message
from gateway.core.outbox import LOW_WATER
from gateway.runtime import Gateway
from gateway.storage.layout import BEYOND_ALL

from .selection import Selection

PAGE = 32  # messages that are read from the log in one turn of the loop
MAX_HELD = 1 << 20  # bytes that are held beyond the boundary
OVERHEAD = 512  # bytes that a message takes beside its content, about
GRACE_MS = 300_000  # the age up to which a message is passed on without the right `history`


class Gap(NamedTuple):
    """The messages between two sequences, both excluded, are no longer kept."""

    after: int
    before: int


class Page(NamedTuple):
    """A part of the missed messages, perhaps after a gap."""

    gap: Gap | None
    messages: list[Message]


class Replay:
    """Reads the messages of a *selection* after the sequence *after*, of the channels that are *readable*.

    Of messages that came more than `GRACE_MS` ago it passes on only those on channels whose history may be read
    (*readable_history*). *wake* is called when there is another page to read.
    """

    __slots__ = (
        *("_awaiting_sync", "_boundary", "_gateway", "_old", "_readable", "_readable_history", "_selection", "_wake"),
        *("held", "held_size", "over", "seen"),
    )

    def __init__(
        self,
        gateway: Gateway,
        selection: Selection,
        after: int,
        readable: Callable[[str], bool],
        readable_history: Callable[[str], bool],
        wake: Callable[[], None],
    ) -> None:
        self.seen = after  # the sequence up to which everything was passed on, or does not match
        self.held: list[Message] = []  # from the boundary on
        self.held_size = 0  # about the bytes in it
        self.over = False  # everything below the boundary was read
        self._gateway = gateway
        self._selection = selection
        self._readable = readable
        self._readable_history = readable_history
        self._old = gateway.bus.clock() - GRACE_MS  # older messages need the right; fixed, however long reading takes
        self._wake = wake
        self._boundary: int | None = None
        self._awaiting_sync = False  # until everything below the boundary is on disk

    @property
    def ready(self) -> bool:
        """Whether there may be a page to read now."""
        return not (self.over or self._awaiting_sync)

    def hold(self, message: Message) -> None:
        """Hold *message*, which the bus delivered; without a boundary, drop it, as it is read from the log."""
        if self._boundary is None:
            return
        self.held.append(message)
        self.held_size += len(message.content) + OVERHEAD
        if self.held_size > MAX_HELD:
            self.held.clear()
            self.held_size = 0
            self._boundary = None

    def next_page(self) -> Page:
        """Return the next page, empty if there is none now; `ready` says whether to ask again.

        Raises `Unavailable` if the log or the index cannot be read.
        """
        while self.ready:
            end = self._gateway.index.synced_seq if self._boundary is None else self._boundary - 1
            page, last = self._read(end)
            gap = None
            # Read after the page, since retention may have retired messages meanwhile.
            kept = min(self._gateway.log.segments.first_kept, self._boundary or BEYOND_ALL)
            if kept > self.seen + 1:
                gap = Gap(self.seen, kept)
                page = [message for message in page if message.seq >= kept]
                last = max(last, kept - 1)
            self.seen = max(self.seen, last)
            if page or gap is not None:
                return Page(gap, page)
            if last < end:  # nothing was found in this part of the log: let others have their turn
                break
            self._continue_at_boundary()
        return Page(None, [])

    def _continue_at_boundary(self) -> None:
        """Set the boundary, since the log has no more; end if there is one, as it is reached."""
        if self._boundary is not None:
            self.over = True
            return
        ledger = self._gateway.bus.ledger
        self._boundary = ledger.next_seq
        self._awaiting_sync = True
        ledger.when_synced(self._boundary - 1, self._on_boundary_synced)

    def _on_boundary_synced(self) -> None:
        self._awaiting_sync = False
        self._wake()

    def _read(self, end: int) -> tuple[list[Message], int]:
        """Return a page of messages up to the sequence *end*, and the last sequence that was looked at."""
        if self.seen >= end:
            return [], self.seen
        index, only, before = self._gateway.index, self._selection.only, end + 1
        if only is None:
            found, last = index.scan(self._wants, after=self.seen, before=before, limit=PAGE, size=LOW_WATER)
        else:
            found = index.history(only, after=self.seen, before=before, limit=PAGE, size=LOW_WATER)
            last = found[-1].seq if found else end
        old, readable_history = self._old, self._readable_history
        return [each for each in found if each.time >= old or readable_history(each.channel)], last

    def _wants(self, channel: str) -> bool:
        return self._selection.covers(channel) and self._readable(channel)


def needs_history(gateway: Gateway, channel: str, after: int) -> bool:
    """Whether the right `history` is needed to listen to *channel* after the sequence *after*.

    That is so if a message was missed that came more than `GRACE_MS` ago. Raises `Unavailable`.
    """
    missed = gateway.index.history(channel, after=after, limit=1)
    return bool(missed) and missed[0].time < gateway.bus.clock() - GRACE_MS
