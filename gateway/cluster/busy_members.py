"""Members that are expected to want the turn again, because they used it twice within three rounds.

A round has a batch of each member that used the turn lately. The turn passes to a busy member without a wish, and a
busy member makes one only if the turn does not come. While all members are busy, no batch is sent only to pass the turn
on, and no wish is sent at all. A busy member that gets the turn and has nothing to send passes it on with an empty
batch, and is not busy any more.

Which members are busy follows from the last batches, and from the time since the last one of each. So the member itself
and the holder agree, but for moments, and for some rounds after one of them has started.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.core.bounded_maps import BoundedMap

from .batch import Batch, name_of

REMEMBERED: Final = 16  # batches in which a member used the turn lately
NEVER: Final = -4 * REMEMBERED  # the number of a batch that there was not
BUSY_SECONDS: Final = 0.5  # after which a member that sent nothing is not busy; it may have ended


class _Use(NamedTuple):
    member: str
    last: int  # numbers of its last two batches with lines
    before: int
    heard: float  # when the last one came


class BusyMembers:
    """The members that used their last turns."""

    def __init__(self) -> None:
        self._uses = BoundedMap[str, _Use](REMEMBERED)  # by the names of the gateways: an earlier life has ended
        self._number = 0  # of the last batch that counted

    def note(self, batch: Batch, now: float) -> None:
        """Note a *batch* that counted, and came *now*."""
        self._number = batch.number
        use, name = self._use(batch.member), name_of(batch.member)
        if batch.lines:
            before = NEVER if use is None else use.last
            self._uses[name] = _Use(batch.member, batch.number, before, now)
        elif use is None or batch.holder != batch.member:  # another life, or one that had no use for the turn
            self._uses.pop(name)
        self._uses.drop_while(lambda use: use.last <= batch.number - REMEMBERED)

    def forget(self, member: str) -> None:
        """Expect nothing of *member*."""
        if self._use(member) is not None:
            self._uses.pop(name_of(member))

    def contains(self, member: str, now: float) -> bool:
        """Whether *member* is busy."""
        use, rounds = self._use(member), 3 * len(self._uses)
        return use is not None and use.before > self._number - rounds and now - use.heard <= BUSY_SECONDS

    def first(self, now: float, without: str) -> str | None:
        """The busy member that used the turn least recently, apart from the one *without*; None if there is none."""
        members = (use.member for _, use in self._uses.items())
        return next((each for each in members if each != without and self.contains(each, now)), None)

    def _use(self, member: str) -> _Use | None:
        use = self._uses.get(name_of(member))
        return None if use is None or use.member != member else use
