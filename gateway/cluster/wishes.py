"""The members that want the turn, in the order in which they asked for it.

A wish may be heard before the batch that fulfils it is read: signals are faster than the stream. So a wish has the
number of batches that counted when it was made, and a turn fulfils those from before the batch that began it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.core.bounded_maps import BoundedMap

WISH_SECONDS: Final = 0.5  # for which a wish for the turn counts; members repeat it ten times a second
MAX_GRANTED: Final = 256  # members whose last turn is remembered


class _Wish(NamedTuple):
    heard: float  # when
    batches: int  # that counted before


class Wishes:
    """The wishes of other members; a time is in seconds."""

    def __init__(self) -> None:
        self._heard: dict[str, _Wish] = {}  # by member, in order
        self._granted = BoundedMap[str, int](MAX_GRANTED)  # the batches that began the last turn of each member

    def hear(self, member: str, batches: int, now: float) -> None:
        """Note that *member* wants the turn, which it said after so many *batches* that counted; 0: unknown."""
        if not 0 < batches < (self._granted.get(member) or 0):
            self._heard[member] = _Wish(now, batches)

    def grant(self, member: str, batch: int) -> None:
        """Forget the wish that *batch* fulfils: it gives *member* the turn."""
        self._granted[member] = batch
        if (wish := self._heard.pop(member, None)) is not None and wish.batches >= batch:
            self._heard[member] = wish  # again, since that turn: it was heard before the batch was read here

    def forget(self, member: str) -> None:
        """Forget what *member* wanted."""
        self._heard.pop(member, None)

    def first(self, now: float) -> str | None:
        """Return the member that has waited for the turn longest; one that no longer asks for it may have ended."""
        while (member := next(iter(self._heard), None)) is not None and self._heard[member].heard < now - WISH_SECONDS:
            del self._heard[member]
        return member
