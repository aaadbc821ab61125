"""Which member of a cluster holds a link: the one that started first, of those that name it.

Members tell in their heartbeats which links they name. Nobody takes a link before it has heard for long enough that
there is no other one. A member that may be cut off from the others closes its links before they take it for gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from .roster import MemberRoster, epoch_of
from .signals import MAX_LINKS

LISTEN: Final = 6.0  # seconds until the first link is taken: somewhat more than `roster.SILENT`
CUT_OFF: Final = 4.0  # seconds without an answer of the servers, after which links are closed: less than that


class LinkHolders:
    """Decides which member holds each link that the member *me* names, by *roster* and a *clock* in seconds.

    *silence* returns for how many seconds the servers have not answered.
    """

    def __init__(self, me: str, roster: MemberRoster, clock: Callable[[], float], silence: Callable[[], float]) -> None:
        self.links: list[str] = []  # that this member names
        self.digests: list[str] = []  # as members send them
        self._me = me
        self._roster = roster
        self._clock = clock
        self._silence = silence
        self._begun = clock()

    def name(self, links: Iterable[str]) -> None:
        """Tell the others that this member is configured to keep *links*."""
        self.links = sorted(links)[:MAX_LINKS]
        self.digests = [*map(digest_of, self.links)]
        self._begun = self._clock()

    def holder(self, link: str) -> str:
        """The member that should hold *link*."""
        digest = digest_of(link)
        there = [each.member for each in self._roster.heartbeats() if digest in each.links]
        return min([self._me, *there], key=lambda member: (epoch_of(member), member))

    def may_hold(self, link: str) -> bool:
        """Whether this member may be connected by *link* now."""
        listened = self._clock() - self._begun >= LISTEN
        return listened and self._silence() < CUT_OFF and self.holder(link) == self._me


def digest_of(link: str) -> str:
    """The digest of *link*, as members send it."""
    return blake2b(link.encode(), digest_size=8).hexdigest()
