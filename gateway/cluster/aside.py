"""Sends the signals of a member of a cluster, and passes those that arrive to the parts that handle them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.core.bus import Bus

from .agreement import OLDEST, Agreement
from .directs import Flaw, SharedDirects
from .holders import LinkHolders
from .presence import SharedPresence
from .roster import MemberInfo, MemberRoster, info_of
from .signals import (
    PROTOCOL,
    Alive,
    Ask,
    BadSignal,
    Changes,
    Delivered,
    DirectSignal,
    Leaving,
    Signal,
    Snapshot,
    Terms,
    Want,
    Words,
    decode_signal,
    encode_signal,
)


class SignalCarrier(Protocol):
    """Carries signals; any may be lost."""

    def tell(self, data: bytes, to: str = "") -> None:
        """Tell *data* to all others, or *to* one of them."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Run *call* on the gateway's loop after *seconds*."""


class Aside:
    """The signals of this member and to it; *wanted* is told who wants the turn, *state* makes its signs of life.

    *terms* are what all members have to have in common, *refuse* is told why this one cannot be a member.
    *silence* tells for how many seconds the servers have not answered.
    """

    def __init__(
        self,
        carrier: SignalCarrier,
        clock: Callable[[], float],
        wanted: Callable[[str], None],
        state: Callable[[], Alive],
        terms: Callable[[], Mapping[str, str]] = dict,
        refuse: Callable[[str], None] = lambda _reason: None,
        silence: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.roster = MemberRoster(clock)
        self.bad = 0  # signals that were none
        self.holders = LinkHolders(state().member, self.roster, clock, silence)
        self._carrier = carrier
        self._clock = clock
        self._wanted = wanted
        self._state = state
        mine = state()
        self._me = mine.member
        self.agreement = Agreement(mine.member, mine.version, terms, self.tell, refuse)
        self._presence: SharedPresence | None = None  # until the gateway starts
        self._directs: SharedDirects | None = None
        self._verbs: dict[type[Signal], Callable[[Any], object]] = {
            Want: lambda want: wanted(want.member),
            Alive: self._hear_alive,
            Terms: self.agreement.take,
            Leaving: self._hear_leaving,
        }

    def start(self, bus: Bus, flaw: Flaw, listen: Callable[[str, bytes], None]) -> None:
        """Share the presence of peers on *bus*, and direct messages that have no *flaw*.

        *listen* takes what adapters tell each other, by protocol; it raises `BadSignal` if they cannot use it.
        """
        self._listen = listen
        self._presence = SharedPresence(self._me, bus.presence, self.tell, self._carrier.later)
        self._directs = SharedDirects(
            self._me, bus, self.tell, self._clock, self._presence.holders, self.roster.members, flaw
        )
        self._verbs |= {
            Changes: self._presence.take_changes,
            Ask: self._presence.asked,
            Snapshot: self._presence.take_snapshot,
            DirectSignal: self._directs.take,
            Delivered: self._directs.answered,
            Words: self._hear_words,
        }

    @property
    def ignored(self) -> int:
        """How many signals, or what they said, could not be believed."""
        presence = 0 if self._presence is None else self._presence.ignored
        return self.bad + presence + (0 if self._directs is None else self._directs.ignored)

    def tell(self, signal: Signal, to: str = "") -> None:
        """Send *signal* to all others, or *to* one of them."""
        self._carrier.tell(encode_signal(signal), to)

    def hear(self, data: bytes) -> None:
        """Take a signal, of anybody."""
        try:
            signal = decode_signal(data)
        except BadSignal:
            self.bad += 1
            return
        if signal.member == self._me:
            return
        known = isinstance(signal, Want | Alive | Terms) or self.roster.contains(signal.member)
        if known and (verb := self._verbs.get(type(signal))) is not None:
            verb(signal)

    def beat(self) -> None:
        """Give a sign of life, and notice who gives none; call this once a second."""
        self.tell(self._alive())
        for member in self.roster.remove_silent():
            self._gone(member)
        if self._directs is not None:
            self._directs.tick()

    def tell_adapters(self, protocol: str, data: bytes) -> None:
        """Tell *data* to the adapters of *protocol* at all other members."""
        self.tell(Words(self._me, protocol, data))

    def leave(self) -> None:
        """Tell that this member stops."""
        self.tell(Leaving(self._me))

    def members(self) -> list[MemberInfo]:
        """All members, this one first."""
        return [info_of(self._alive(), 0.0), *self.roster.infos()]

    def _alive(self) -> Alive:
        alive = self._state()
        alive.links = self.holders.told
        alive.speaks, alive.oldest, alive.terms = PROTOCOL, OLDEST, self.agreement.digest
        if self._presence is not None:
            alive.number = self._presence.number
        return alive

    def _hear_alive(self, alive: Alive) -> None:
        new = not self.roster.contains(alive.member)
        if (former := self.roster.hear(alive)) is not None:
            self._gone(former)
        if new and self.roster.contains(alive.member):
            self.tell(self._alive(), alive.member)  # a new member need not wait for the next second
        if not self.roster.contains(alive.member):
            return
        self.agreement.alive(alive)
        if self._presence is not None:
            self._presence.alive(alive.member, alive.number)

    def _hear_words(self, words: Words) -> None:
        try:
            self._listen(words.protocol, words.data)
        except BadSignal:
            self.bad += 1

    def _hear_leaving(self, leaving: Leaving) -> None:
        if self.roster.remove(leaving.member):
            self._gone(leaving.member)

    def _gone(self, member: str) -> None:
        self.agreement.gone(member)
        if self._presence is not None and self._directs is not None:
            self._presence.gone(member)
            self._directs.gone(member)
