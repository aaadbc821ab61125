"""Notices of joins and leaves: sessions get them at once where few listen; where many do, they are gathered.

Telling a session costs a write, so somebody who joins and leaves a channel with 200 listeners causes 400 writes, some
four milliseconds. In such a channel notices wait for `GATHER_SECONDS`, and each session then gets all of them with one
write. Who joins and leaves in between is not mentioned at all. A session always hears of a newcomer before it receives
a message from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from .member import Member
from .message import Peer

GATHER_SECONDS = 0.05  # that notices wait where many sessions listen
FEW = 16  # sessions of a channel that are told at once
SLICE = 256  # notices that are delivered in one turn of the loop
WRITE_COST = 8  # notices that a session counts as in addition, for the write: some ten microseconds
MAX_NOTICES = 64  # undelivered notices; beyond it the oldest is delivered at once


class _Notice:
    """The notice that *peer* joined or left *channel*, for those of *waiting* that are still listening."""

    __slots__ = ("channel", "joined", "peer", "waiting")

    def __init__(self, channel: str, peer: Peer, waiting: dict[Member, None], *, joined: bool) -> None:
        self.channel = channel
        self.peer = peer
        self.joined = joined
        self.waiting = waiting

    def tell(self, member: Member) -> None:
        """Tell *member* unless it was told, or is a connection of the peer itself."""
        if member in self.waiting:
            del self.waiting[member]
            if member.who.number != self.peer.number:
                (member.peer_joined if self.joined else member.peer_left)(self.channel, self.peer)

    def tell_all(self) -> None:
        """Tell everybody that waits."""
        while self.waiting:
            self.tell(next(reversed(self.waiting)))


class Notices:
    """Tells sessions who joined and who left, at once where no more than *few* listen.

    `post` runs a call in a later turn of the loop, and `later` after some seconds; without them every session is told
    at once.
    """

    def __init__(self, few: int = FEW) -> None:
        self.post: Callable[[Callable[[], None]], None] | None = None
        self.later: Callable[[float, Callable[[], None]], None] | None = None
        self._few = few
        self._gathering: list[_Notice] = []  # the oldest first
        self._telling: deque[_Notice] = deque()  # the same for those that are older
        self._due = False  # a call of `_tell_gathered` or `_tell_slice` is on its way

    def __bool__(self) -> bool:
        """Whether a session still has to be told of something."""
        return bool(self._telling or self._gathering)

    def tell(self, channel: str, peer: Peer, members: Mapping[Member, None], *, joined: bool) -> None:
        """Tell *members*, the sessions that listen to *channel*, that *peer* joined or left it."""
        waiting = dict(members)
        pending = [each for each in self._pending() if each.channel == channel]
        for each in reversed(pending):
            if each.peer == peer and each.joined != joined:
                for member in each.waiting:  # which know of neither, and need not
                    waiting.pop(member, None)
                each.waiting.clear()
                break
        notice = _Notice(channel, peer, waiting, joined=joined)
        if self.post is None or self.later is None or (len(members) <= self._few and not pending):
            notice.tell_all()
        elif waiting:
            self._gather(notice)

    def stop_telling(self, channel: str, member: Member) -> None:
        """Tell *member* no more, which stopped listening to *channel*; it is given the peers if it comes back."""
        for notice in self._pending():
            if notice.channel == channel:
                notice.waiting.pop(member, None)

    def tell_arrival(self, channel: str, number: int) -> None:
        """Deliver the notices about the peer with *number* in *channel*, before its message is delivered.

        Those about others wait, so that one message does not pay for all who came before.
        """
        for notice in self._pending():
            if notice.channel == channel and notice.peer.number == number:
                notice.tell_all()

    def _pending(self) -> Iterator[_Notice]:
        return chain(self._telling, self._gathering)

    def _gather(self, notice: _Notice) -> None:
        assert self.later is not None
        if len(self._telling) + len(self._gathering) >= MAX_NOTICES:
            (self._telling.popleft() if self._telling else self._gathering.pop(0)).tell_all()
        self._gathering.append(notice)
        if not self._due:
            self._due = True
            self.later(GATHER_SECONDS, self._tell_gathered)

    def _tell_gathered(self) -> None:
        self._telling.extend(self._gathering)
        self._gathering.clear()
        self._tell_slice()

    def _tell_slice(self) -> None:
        """Tell some sessions everything that is to be told of one channel, and arrange for the next slice."""
        assert self.post is not None
        assert self.later is not None
        while self._telling and not self._telling[0].waiting:
            self._telling.popleft()
        if not self._telling:
            self._due = bool(self._gathering)
            if self._due:
                self.later(GATHER_SECONDS, self._tell_gathered)
            return
        self.post(self._tell_slice)  # first, so that an error below does not stop it
        first, cost = self._telling[0], 0
        notices = [each for each in self._telling if each.channel == first.channel]
        while first.waiting and cost < SLICE:
            member = next(reversed(first.waiting))
            cost += WRITE_COST + len(notices)
            for notice in notices:
                notice.tell(member)
