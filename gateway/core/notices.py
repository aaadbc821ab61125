"""Notices of joins and leaves: sessions get them at once where few listen; where many do, they are gathered.

Telling a session costs a write, so somebody who joins and leaves a channel with 200 listeners causes 400 writes, some
four milliseconds. In such a channel notices wait for `GATHER_SECONDS`, and each session then gets all of them with one
write. Who joins and leaves in between is mentioned only to sessions that know of one of the two. A session always hears
of a newcomer before it receives a message from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice

from .message import Peer
from .subscriber import Subscriber

GATHER_SECONDS = 0.05  # that notices wait where many sessions listen
FEW = 16  # sessions of a channel that are told at once
SLICE = 256  # notices that are delivered in one turn of the loop, a write counted as well
WRITE_COST = 8  # notices that take as long as a write, which each session needs: some ten microseconds
MAX_NOTICES = 64  # that wait; a further one delivers the oldest at once


class _Notice:
    """The notice that *peer* joined or left *channel*, and the sessions that still have to be told."""

    __slots__ = ("channel", "joined", "peer", "waiting")

    def __init__(self, channel: str, peer: Peer, waiting: dict[Subscriber, None], *, joined: bool) -> None:
        self.channel = channel
        self.peer = peer
        self.joined = joined
        self.waiting = waiting

    def tell(self, member: Subscriber) -> None:
        """Tell *member* if it waits, unless it is a connection of the peer itself."""
        if member in self.waiting:
            del self.waiting[member]
            if member.who.number != self.peer.number:
                (member.peer_joined if self.joined else member.peer_left)(self.channel, self.peer)

    def tell_all(self) -> None:
        """Tell everybody that waits."""
        for member in list(self.waiting):
            self.tell(member)


class Notices:
    """Tells sessions who joined and who left, at once where no more than *few* listen.

    `post` runs a call in a later turn of the loop, `later` after some seconds; without them everybody is told at once.
    A notice that is gathered is first in `_gathering`, and then in `_telling` until everybody was told.
    """

    def __init__(self, few: int = FEW) -> None:
        self.post: Callable[[Callable[[], None]], None] | None = None
        self.later: Callable[[float, Callable[[], None]], None] | None = None
        self._few = few
        self._telling: deque[_Notice] = deque()  # the oldest first
        self._gathering: list[_Notice] = []  # all younger than those, the oldest first
        self._due = False  # a call of `_tell_gathered` or `_tell_slice` is on its way

    def __bool__(self) -> bool:
        """Whether notices wait."""
        return bool(self._telling or self._gathering)

    def tell(self, channel: str, peer: Peer, members: Mapping[Subscriber, None], *, joined: bool) -> None:
        """Tell *members*, the sessions that listen to *channel*, that *peer* joined or left it."""
        waiting = dict(members)
        pending = [each for each in self._pending() if each.channel == channel]
        last = next((each for each in reversed(pending) if each.peer.number == peer.number), None)
        if last is not None and last.peer == peer and last.joined != joined:
            for member in last.waiting:  # which know of neither, and need not
                waiting.pop(member, None)
            last.waiting.clear()
        notice = _Notice(channel, peer, waiting, joined=joined)
        if self.post is None or self.later is None or (len(members) <= self._few and not pending):
            notice.tell_all()
        elif waiting:
            self._gather(notice)

    def stop_telling(self, channel: str, member: Subscriber) -> None:
        """Tell *member* no more, which stopped listening to *channel*; it is given the peers if it comes back."""
        for notice in self._pending():
            if notice.channel == channel:
                notice.waiting.pop(member, None)

    def tell_arrival(self, channel: str, number: int, receivers: Iterable[Subscriber] | None = None) -> None:
        """Deliver the notices about the peer with *number* in *channel*, before its message is delivered.

        A direct message has *receivers*, and nobody else is told yet. Notices about others wait, so that one message
        does not pay for all who came before.
        """
        for notice in self._pending():
            if notice.channel == channel and notice.peer.number == number:
                if receivers is None:
                    notice.tell_all()
                else:
                    for member in receivers:
                        notice.tell(member)

    def tell_everything(self, channel: str, member: Subscriber) -> None:
        """Deliver to *member* what waits for it about *channel*, before it is given the list of peers there."""
        for notice in self._pending():
            if notice.channel == channel:
                notice.tell(member)

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
        """Tell some sessions of one channel everything that waits for them, and arrange for the next slice."""
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
        first = self._telling[0]
        notices = [each for each in self._telling if each.channel == first.channel]
        count = SLICE // (WRITE_COST + len(notices)) or 1
        for member in list(islice(first.waiting, count)):
            for notice in notices:
                notice.tell(member)
