"""Sessions that receive notices of joins and leaves know who is present, after any sequence of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.core.message import Message, Peer
from gateway.core.notices import Notices
from gateway.core.presence import MAX_ALL_GUESTS, MAX_GUESTS, Presence
from gateway.core.subscriber import Subscriber


class Watcher:
    """A session as presence sees it: it keeps a list of who is there besides itself."""

    hears_presence = True

    def __init__(self, number: int) -> None:
        self.peer = self.who = Peer(number, "toy")
        self.channels: dict[str, None] = {}
        self.view: set[int] = set()

    def peer_joined(self, channel: str, peer: Peer) -> None:
        assert channel == "lobby"
        assert peer.number not in self.view, "it is told once"
        self.view.add(peer.number)

    def peer_left(self, channel: str, peer: Peer) -> None:
        assert channel == "lobby"
        self.view.remove(peer.number)

    def deliver(self, message: Message) -> None:
        raise AssertionError(message)


IDENTITIES = st.integers(1000, 1003)


class PresenceMachine(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, dict[Subscriber, None]] = {"lobby": {}}
        self.presence = Presence(self.members)
        self.numbers = 0
        self.now = 0
        self.guests: dict[int, int] = {}
        self.away: set[int] = set()

    @rule(target=sessions)
    def connect(self) -> Watcher:
        self.numbers += 1
        return Watcher(self.numbers)

    @rule(session=sessions)
    def listen(self, session: Watcher) -> None:
        if session.channels:
            return
        session.view = {peer.number for peer in self.presence.add_listener("lobby", session.who)} - {session.who.number}
        self.members["lobby"][session] = None  # type: ignore[index]  # what it needs of one
        session.channels["lobby"] = None
        self._silent(session.who.number)

    @rule(session=consumes(sessions))
    def leave(self, session: Watcher) -> None:
        if session.channels:
            del self.members["lobby"][session]  # type: ignore[arg-type]
            self.presence.notices.stop_telling("lobby", session)  # type: ignore[arg-type]
            self.presence.remove_listener("lobby", session.who)
            self._left(session.who.number)

    @rule(session=sessions, identity=IDENTITIES, protocol=st.sampled_from(("toy", "other", "third")))
    def bind(self, session: Watcher, identity: int, protocol: str = "toy") -> None:
        if session.who is not session.peer:
            return
        before, session.who = session.who, Peer(identity, "toy", str(identity)).connected_by(protocol)
        session.view.discard(identity)
        self.presence.rename(session, before)  # type: ignore[arg-type]
        if session.channels:
            self._left(before.number)
            self._silent(identity)

    @rule(identity=IDENTITIES, seconds=st.integers(1, 10))
    def come(self, identity: int, seconds: int) -> None:
        self.presence.announce_present("lobby", Peer(identity, "toy", str(identity)), self.now + seconds)
        self._silent(identity)
        if not self._listens(identity):
            self.guests[identity] = self.now + seconds

    @rule(identity=IDENTITIES)
    def go(self, identity: int) -> None:
        self.presence.announce_absent("lobby", Peer(identity, "toy", str(identity)))
        self._silent(identity)
        if self._listens(identity):
            self.away.add(identity)

    @rule(seconds=st.integers(0, 5))
    def time(self, seconds: int) -> None:
        self.now += seconds
        self.presence.tick(self.now)
        self.guests = {number: until for number, until in self.guests.items() if until > self.now}

    @invariant()
    def everybody_knows_who_is_there(self) -> None:
        listening = {session.who.number for session in self.members["lobby"]}
        here = (listening - self.away) | self.guests.keys()
        assert set(self.presence.peers("lobby")) == here
        assert all(
            self.presence.contains("lobby", number) == (number in here) for number in (*range(5), *range(1000, 1004))
        )
        for session in self.members["lobby"]:
            assert isinstance(session, Watcher)
            assert session.view == here - {session.who.number}

    def _listens(self, number: int) -> bool:
        return any(session.who.number == number for session in self.members["lobby"])

    def _silent(self, number: int) -> None:
        self.guests.pop(number, None)
        self.away.discard(number)

    def _left(self, number: int) -> None:
        if not self._listens(number):
            self._silent(number)


class GatheringMachine(PresenceMachine):
    """The same where notices are gathered: whoever is told knows who is there as soon as nothing waits."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []
        self.presence.notices = Notices(few=0)
        self.presence.notices.post = self.calls.append
        self.presence.notices.later = lambda _seconds, call: self.calls.append(call)

    @rule()
    def turn(self) -> None:
        if self.calls:
            self.calls.pop(0)()

    @rule(identity=st.one_of(st.integers(1, 5), IDENTITIES))
    def speak(self, identity: int) -> None:
        self.presence.notices.tell_arrival("lobby", identity)
        for session in self.members["lobby"]:
            assert isinstance(session, Watcher)
            if session.who.number != identity:
                assert (identity in session.view) == self.presence.contains("lobby", identity)

    @rule()
    def rest(self) -> None:
        while self.calls:
            self.turn()
        assert not self.presence.notices
        super().everybody_knows_who_is_there()

    @invariant()
    def everybody_knows_who_is_there(self) -> None:
        if not self.calls:
            super().everybody_knows_who_is_there()


PresenceMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPresence = PresenceMachine.TestCase
GatheringMachine.TestCase.settings = PresenceMachine.TestCase.settings
TestGathering = GatheringMachine.TestCase


def test_the_number_of_guests_of_a_channel_is_bounded() -> None:
    presence = Presence({})
    for number in range(MAX_GUESTS + 2):
        presence.announce_present("lobby", Peer(number, "toy"), 1)
    assert list(presence.peers("lobby")) == [*range(2, MAX_GUESTS + 2)]
    presence.tick(1)
    assert presence.peers("lobby") == {}


def test_the_number_of_guests_of_all_channels_is_bounded() -> None:
    presence = Presence({})
    channels = [f"channel {number}" for number in range(MAX_ALL_GUESTS + 2)]
    for channel in channels:
        presence.announce_present(channel, Peer(1, "toy"), 1)
    presence.announce_present(channels[2], Peer(1, "toy"), 1)
    presence.announce_present("one more", Peer(1, "toy"), 1)
    assert [channel for channel in channels if presence.peers(channel)] == [channels[2], *channels[4:]]
    presence.tick(1)
    assert not presence.channels_without_connection(1)


def test_binding_another_connection_ends_an_absence() -> None:
    machine = PresenceMachine()
    watcher, first, second = (cast(Watcher, machine.connect()) for _ in range(3))
    for session in (watcher, first, second):
        machine.listen(session)
    machine.bind(first, 1000)
    machine.go(1000)
    machine.bind(second, 1000)
    machine.everybody_knows_who_is_there()
    assert watcher.view == {1000}
