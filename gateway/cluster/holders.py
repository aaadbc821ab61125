"""Which member of a cluster holds a link: the one that started first, of those that name it.

Members tell in their heartbeats which links they name. Nobody takes a link before it has heard for long enough that
there is no other one. A member that may be cut off from the others closes its links before they take it for gone, and
waits, when it is back, until they have heard it; if it took others for gone meanwhile, it listens again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from .roster import MemberRoster, epoch_of
from .signals import MAX_LINKS

LISTEN_SECONDS: Final = 6.0  # until the first link is taken: somewhat more than `roster.MEMBER_SILENCE_SECONDS`
CUT_OFF_SECONDS: Final = 4.0  # of silence of the servers that close links: below `roster.MEMBER_SILENCE_SECONDS`
HEARD_SECONDS: Final = 2.5  # until all others have heard a member that is back, and have closed their links
# Without an answer of the servers, which answer every two seconds. After them this member may be the one that was cut
# off, and members that it takes for gone may still be there.
DOUBTFUL_SECONDS: Final = 3.0


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
        self._begun = self._looked = clock()
        self._doubted: float | None = None  # when this member may have been cut off last
        self._away: float | None = None  # when it had to close its links last

    def beat(self, *, lost: bool) -> None:
        """Note whether other members were *lost*, being silent; call this once a second."""
        now = self._clock()
        if self._silence() >= DOUBTFUL_SECONDS:
            self._doubted = now
        self._looked = now
        if lost and self._doubted is not None and now - self._doubted < LISTEN_SECONDS:
            self._begun = now  # they may hold links: perhaps it was this member that was away

    def name(self, links: Iterable[str]) -> None:
        """Tell the others that this member is configured to keep *links*."""
        self.links = sorted(links)[:MAX_LINKS]
        self.digests = [*map(digest_of, self.links)]
        self._begun = self._clock()

    def holder(self, link: str) -> str:
        """Return the member that should hold *link*."""
        digest = digest_of(link)
        there = [each.member for each in self._roster.heartbeats() if digest in each.links]
        return min([self._me, *there], key=lambda member: (epoch_of(member), member))

    def may_hold(self, link: str) -> bool:
        """Whether this member may be connected by *link* now."""
        now = self._clock()
        if self._silence() >= CUT_OFF_SECONDS or now - self._looked >= CUT_OFF_SECONDS:
            self._away = now
        is_back = self._away is None or now - self._away >= HEARD_SECONDS
        return is_back and now - self._begun >= LISTEN_SECONDS and self.holder(link) == self._me


def digest_of(link: str) -> str:
    """The digest of *link*, as members send it."""
    return blake2b(link.encode(), digest_size=8).hexdigest()
