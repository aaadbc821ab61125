"""How far a member is behind the other ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .roster import MemberInfo


class Lag(NamedTuple):
    """What a member lacks: *batches* of the stream, *records* of the log, and for how many *seconds* it has."""

    batches: int
    records: int
    seconds: float


class LagMeter:
    """Measures for how long a member has been behind, by a *clock* in seconds.

    What it compares with is a second old or two, so a member that takes what comes is not behind, however much comes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._level = clock()  # when it was not behind for the last time

    def measure(self, me: MemberInfo, others: Iterable[MemberInfo], last: int) -> Lag:
        """How far *me* is behind the *others*, and a stream that ends at *last*; call this once a second."""
        infos = [me, *others]
        batches = max(last, *(info.place for info in infos)) - me.place
        records = max(info.next_seq for info in infos) - me.next_seq
        if not batches:
            self._level = self._clock()
        return Lag(batches, records, self._clock() - self._level)
