"""The present members of the cluster: the gateways whose heartbeats arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from .batch import name_of
from .signals import Heartbeat

MEMBER_SILENCE_SECONDS: Final = 5.0  # without a heartbeat, after which a gateway is gone
MAX_MEMBERS: Final = 256  # no more are added, so that forged heartbeats use no memory


class MemberInfo(NamedTuple):
    """What is known of a member.

    Fields that have no comment are those of its `Heartbeat`.
    """

    name: str  # `cluster.gateway`
    epoch: int  # when it started (ms since 1970)
    version: str
    heard: float  # how many seconds ago its last heartbeat came
    next_seq: int
    place: int
    is_accepting: bool


class MemberRoster:
    """The other members, as their heartbeats tell, by a *clock* in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[str, tuple[float, Heartbeat]] = {}  # by the name of the gateway

    def hear(self, heartbeat: Heartbeat) -> str | None:
        """Note a heartbeat; return the former life of the gateway, if this is the first of a new one."""
        name = name_of(heartbeat.member)
        _, known = self._heard.get(name, (0.0, None))
        if known is None and len(self._heard) >= MAX_MEMBERS:
            return None
        if known is not None and epoch_of(known.member) > epoch_of(heartbeat.member):
            return None
        self._heard[name] = self._clock(), heartbeat
        return None if known is None or known.member == heartbeat.member else known.member

    def remove(self, member: str) -> bool:
        """Forget *member*, which stops; return whether it was known."""
        there = self.contains(member)
        if there:
            del self._heard[name_of(member)]
        return there

    def remove_silent(self) -> list[str]:
        """Forget and return the members that were silent for too long."""
        now = self._clock()
        silent = [heartbeat.member for heard, heartbeat in self._heard.values() if now - heard > MEMBER_SILENCE_SECONDS]
        for member in silent:
            del self._heard[name_of(member)]
        return silent

    def contains(self, member: str) -> bool:
        """Whether *member*, one life of a gateway, is a member now."""
        _, known = self._heard.get(name_of(member), (0.0, None))
        return known is not None and known.member == member

    def members(self) -> list[str]:
        """The other members."""
        return [heartbeat.member for _, heartbeat in self._heard.values()]

    def heartbeats(self) -> list[Heartbeat]:
        """The last heartbeat of each other member."""
        return [heartbeat for _, heartbeat in self._heard.values()]

    def times(self) -> list[int]:
        """The time of day (ms since 1970) by the clock of each other member that tells it."""
        now = self._clock()
        heard = self._heard.values()
        return [
            each.clock + int((now - at) * 1000)
            for at, each in heard
            if each.clock and now - at <= MEMBER_SILENCE_SECONDS
        ]

    def infos(self) -> list[MemberInfo]:
        """What is known of the others, by name."""
        now = self._clock()
        found = [info_of(heartbeat, now - heard) for heard, heartbeat in self._heard.values()]
        return sorted(found)


def epoch_of(member: str) -> int:
    """When *member* started, in ms since 1970."""
    return int(member.rpartition("@")[2])


def info_of(heartbeat: Heartbeat, heard: float) -> MemberInfo:
    """What is known of a member by its *heartbeat*, which came *heard* seconds ago."""
    return MemberInfo(
        name_of(heartbeat.member),
        epoch_of(heartbeat.member),
        heartbeat.version,
        heard,
        heartbeat.next_seq,
        heartbeat.place,
        heartbeat.is_accepting,
    )
