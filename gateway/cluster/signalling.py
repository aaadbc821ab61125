"""Sends the signals of a member of a cluster, and passes those that arrive to the parts that handle them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.core.bus import Bus

from .batch import name_of
from .common_settings import OLDEST, Agreement
from .directs import Flaw, SharedDirects
from .holders import LinkHolders
from .leaving_reasons import NAMESAKE, RESUMED
from .presence import SharedPresence
from .roster import MEMBER_SILENCE_SECONDS, MemberInfo, MemberRoster, epoch_of, info_of
from .signals import (
    PROTOCOL,
    AdapterSignal,
    BadSignal,
    DirectOutcome,
    DirectSignal,
    Heartbeat,
    Leaving,
    PresenceChanges,
    PresenceSnapshot,
    Signal,
    SnapshotRequest,
    Terms,
    TurnRequest,
    decode_signal,
    encode_signal,
)


class SignalTransport(Protocol):
    """Carries signals; any may be lost."""

    def tell(self, data: bytes, to: str = "") -> None:
        """Tell *data* to all others, or *to* one of them."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Run *call* on the gateway's loop after *seconds*."""


class Signalling:
    """Sends and receives the signals of this member. *wanted* is called with each member that wants the turn, and when.

    *state* makes the heartbeats of this member. *terms* are what all members must have in common, and *refuse* is
    called with the reason why this one cannot be a member. *silence* returns for how many seconds the servers have not
    answered.
    """

    def __init__(
        self,
        transport: SignalTransport,
        clock: Callable[[], float],
        wanted: Callable[[str, int], None],
        state: Callable[[], Heartbeat],
        terms: Callable[[], Mapping[str, str]] = dict,
        refuse: Callable[[str], None] = lambda _reason: None,
        silence: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.roster = MemberRoster(clock)
        self.bad = 0  # signals that were not valid
        self.on_heartbeat: Callable[[Heartbeat], object] = lambda _heartbeat: None  # called with those of members
        self.on_leaving: Callable[[str], object] = lambda _member: None  # called with members that stop
        self.holders = LinkHolders(state().member, self.roster, clock, silence)
        self._transport = transport
        self._clock = clock
        self._wanted = wanted
        self._state = state
        mine = state()
        self._me = mine.member
        self.agreement = Agreement(mine.member, mine.version, terms, self.tell, refuse)
        self._refuse = refuse
        self._started: float | None = None
        self._namesake: tuple[str, float] | None = None  # a later gateway with this name, and when it was heard first
        self._presence: SharedPresence | None = None  # until the gateway starts
        self._directs: SharedDirects | None = None
        self._verbs: dict[type[Signal], Callable[[Any], object]] = {
            TurnRequest: lambda request: wanted(request.member, request.batches),
            Heartbeat: self._hear_heartbeat,
            Terms: self.agreement.take,
            Leaving: self._hear_leaving,
        }

    def start(self, bus: Bus, flaw: Flaw, listen: Callable[[str, bytes], None]) -> None:
        """Share the presence of peers on *bus*, and direct messages that have no *flaw*.

        *listen* takes what adapters tell each other, by protocol; it raises `BadSignal` if they cannot use it.
        """
        self._listen = listen
        self._started = self._clock()
        self._presence = SharedPresence(self._me, bus.presence, self.tell, self._transport.later)
        self._directs = SharedDirects(
            self._me, bus, self.tell, self._clock, self._presence.holders, self.roster.members, flaw
        )
        self._verbs |= {
            PresenceChanges: self._presence.take_changes,
            SnapshotRequest: self._presence.answer,
            PresenceSnapshot: self._presence.take_snapshot,
            DirectSignal: self._directs.take,
            DirectOutcome: self._directs.answered,
            AdapterSignal: self._hear_adapter_signal,
        }

    @property
    def ignored(self) -> int:
        """How many signals, or parts of signals, were not valid and are ignored."""
        presence = 0 if self._presence is None else self._presence.ignored
        return self.bad + presence + (0 if self._directs is None else self._directs.ignored)

    def tell(self, signal: Signal, to: str = "") -> None:
        """Send *signal* to all others, or *to* one of them."""
        self._transport.tell(encode_signal(signal), to)

    def hear(self, data: bytes) -> None:
        """Handle *data* that anybody may have sent; bytes that are not a signal are counted and ignored."""
        try:
            signal = decode_signal(data)
        except BadSignal:
            self.bad += 1
            return
        if name_of(signal.member) == name_of(self._me):
            if signal.member != self._me:
                self._hear_namesake(signal)
            return
        known = isinstance(signal, TurnRequest | Heartbeat | Terms) or self.roster.contains(signal.member)
        if known and (verb := self._verbs.get(type(signal))) is not None:
            verb(signal)

    def beat(self) -> None:
        """Send a heartbeat, and remove the members that sent none for too long; call this once a second."""
        self.tell(self._heartbeat())
        silent = self.roster.remove_silent()
        for member in silent:
            self._gone(member)
        self.holders.beat(lost=bool(silent))
        if self._directs is not None:
            self._directs.tick()

    def tell_adapters(self, protocol: str, data: bytes) -> None:
        """Tell *data* to the adapters of *protocol* at all other members."""
        self.tell(AdapterSignal(self._me, protocol, data))

    def leave(self) -> None:
        """Tell the others that this member stops, and will not use the turn."""
        self.tell(Leaving(self._me))

    def members(self) -> list[MemberInfo]:
        """All members, this one first."""
        return [info_of(self._heartbeat(), 0.0), *self.roster.infos()]

    def _heartbeat(self) -> Heartbeat:
        heartbeat = self._state()
        heartbeat.links = self.holders.digests
        heartbeat.speaks, heartbeat.oldest, heartbeat.terms = PROTOCOL, OLDEST, self.agreement.digest
        if self._presence is not None:
            heartbeat.number = self._presence.number
        return heartbeat

    def _hear_heartbeat(self, heartbeat: Heartbeat) -> None:
        new = not self.roster.contains(heartbeat.member)
        if (former := self.roster.hear(heartbeat)) is not None:
            self._gone(former)
        if new and self.roster.contains(heartbeat.member):
            self.tell(self._heartbeat(), heartbeat.member)  # a new member need not wait for the next second
        if not self.roster.contains(heartbeat.member):
            return
        self.agreement.take_heartbeat(heartbeat)
        self.on_heartbeat(heartbeat)
        if self._presence is not None:
            self._presence.take_heartbeat(heartbeat.member, heartbeat.number)

    def _hear_namesake(self, signal: Signal) -> None:
        """Of two gateways with one name the later one ends, unless it became a member while the other was silent."""
        if isinstance(signal, Terms) and signal.asks:
            self.agreement.answer(signal.member)  # so that it learns that this one is there
        if not isinstance(signal, Terms | Heartbeat):
            return
        now = self._clock()
        if epoch_of(signal.member) < epoch_of(self._me):
            if self._started is None or now - self._started <= MEMBER_SILENCE_SECONDS:
                self._refuse(NAMESAKE.format(name_of(self._me)))
        elif isinstance(signal, Heartbeat):
            if self._namesake is None or self._namesake[0] != signal.member:
                self._namesake = signal.member, now
            elif now - self._namesake[1] > MEMBER_SILENCE_SECONDS:
                self._refuse(RESUMED.format(name_of(self._me)))

    def _hear_adapter_signal(self, signal: AdapterSignal) -> None:
        try:
            self._listen(signal.protocol, signal.data)
        except BadSignal:
            self.bad += 1

    def _hear_leaving(self, leaving: Leaving) -> None:
        self.on_leaving(leaving.member)
        if self.roster.remove(leaving.member):
            self._gone(leaving.member)

    def _gone(self, member: str) -> None:
        self.agreement.gone(member)
        if self._presence is not None and self._directs is not None:
            self._presence.gone(member)
            self._directs.gone(member)
