"""The present members of the cluster: the gateways that say that they are alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from .batch import name_of
from .signals import Alive

SILENT: Final = 5.0  # seconds without a sign of life, after which a gateway is gone
MAX_MEMBERS: Final = 256  # no more are added, so that forged signs of life use no memory


class MemberInfo(NamedTuple):
    """What is known of a member.

    Its *name* is `cluster.gateway`, its *epoch* when it started (ms since 1970), *heard* how many seconds ago it was
    heard. Its log ends before *next_seq*; it has taken the stream up to *place*, and *acts* if it accepts now.
    """

    name: str
    epoch: int
    version: str
    heard: float
    next_seq: int
    place: int
    acts: bool


class MemberRoster:
    """The other members, as their signs of life tell, by a *clock* in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[str, tuple[float, Alive]] = {}  # by the name of the gateway

    def hear(self, alive: Alive) -> str | None:
        """Note a sign of life; return the former life of the gateway, if this is the first of a new one."""
        name = name_of(alive.member)
        _, known = self._heard.get(name, (0.0, None))
        if known is None and len(self._heard) >= MAX_MEMBERS:
            return None
        if known is not None and epoch_of(known.member) > epoch_of(alive.member):
            return None
        self._heard[name] = self._clock(), alive
        return None if known is None or known.member == alive.member else known.member

    def remove(self, member: str) -> bool:
        """Forget *member*, which stops; False if it was not there."""
        there = self.contains(member)
        if there:
            del self._heard[name_of(member)]
        return there

    def remove_silent(self) -> list[str]:
        """Forget and return the members that were silent for too long."""
        now = self._clock()
        silent = [alive.member for heard, alive in self._heard.values() if now - heard > SILENT]
        for member in silent:
            del self._heard[name_of(member)]
        return silent

    def contains(self, member: str) -> bool:
        """Whether *member*, a life of a gateway, is there."""
        _, known = self._heard.get(name_of(member), (0.0, None))
        return known is not None and known.member == member

    def members(self) -> list[str]:
        """The other members."""
        return [alive.member for _, alive in self._heard.values()]

    def alives(self) -> list[Alive]:
        """The last sign of life of each other member."""
        return [alive for _, alive in self._heard.values()]

    def infos(self) -> list[MemberInfo]:
        """What is known of the others, by name."""
        now = self._clock()
        found = [info_of(alive, now - heard) for heard, alive in self._heard.values()]
        return sorted(found)


def epoch_of(member: str) -> int:
    """When *member* started, in ms since 1970."""
    return int(member.rpartition("@")[2])


def info_of(alive: Alive, heard: float) -> MemberInfo:
    """The sign of life *alive*, which came *heard* seconds ago, as it is shown."""
    member = alive.member
    return MemberInfo(name_of(member), epoch_of(member), alive.version, heard, alive.next_seq, alive.place, alive.acts)
