"""Notices of joins and leaves are sent at once to few sessions, and gathered for many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gateway.core import notices
from gateway.core.message import Peer
from gateway.core.notices import FEW, GATHER_SECONDS
from tests.gateway.core.bus_toys import Make, to

if TYPE_CHECKING:
    from tests.conftest import Core, ToySession


MANY = FEW + 2  # sessions: one may leave, and they are still more than are told at once


class CrowdedChannel:
    """More sessions in a channel than are told at once, and the calls that wait for the loop."""

    def __init__(self, core: Core, join: Make) -> None:
        self.steps = deque[Callable[[], None]]()
        self.delays = deque[Callable[[], None]]()
        self.many = [join("lobby") for _ in range(MANY)]
        core.bus.presence.notices.post = self.steps.append
        core.bus.presence.notices.later = self._later
        self.forget()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == GATHER_SECONDS
        self.delays.append(call)

    def forget(self) -> None:
        for each in self.many:
            each.take()

    def told(self) -> list[int]:
        """Let time pass until nothing waits; return how many sessions each turn of the loop told something."""
        counts = list[int]()
        while self.delays or self.steps:
            before = [len(each.heard) for each in self.many]
            (self.steps or self.delays).popleft()()
            counts.append(sum(len(each.heard) > known for each, known in zip(self.many, before, strict=True)))
        return [count for count in counts if count]


@pytest.fixture
def crowd(core: Core, join: Make) -> CrowdedChannel:
    return CrowdedChannel(core, join)


def came(session: ToySession) -> tuple[str, str, int]:
    return ("+", "lobby", session.peer.number)


def left(session: ToySession) -> tuple[str, str, int]:
    return ("-", "lobby", session.peer.number)


def test_few_listeners_are_notified_at_once(core: Core, join: Make) -> None:
    crowd = CrowdedChannel(core, join)
    join("lobby")  # whose notice waits, in another channel
    few = [join("elsewhere") for _ in range(FEW)]
    newcomer = join("elsewhere")
    assert all(each.take()[-1] == ("+", "elsewhere", newcomer.peer.number) for each in few)
    assert crowd.delays


def test_many_listeners_are_notified_later_in_slices(
    crowd: CrowdedChannel, join: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SLICE", 50)
    newcomers = [join("lobby") for _ in range(2)]
    assert not any(each.heard for each in crowd.many)
    assert len(crowd.delays) == 1, "the first notice starts the delay, however many follow"
    assert crowd.told() == [5, 5, 5, 3], "a session counts as its write and two notices"
    assert all(each.take() == [came(newcomer) for newcomer in newcomers] for each in crowd.many)
    assert newcomers[0].take() == [came(newcomers[1])]


def test_notices_that_come_during_a_round_are_gathered_for_the_next(
    crowd: CrowdedChannel, join: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SLICE", 1)
    first = join("lobby")
    crowd.delays.popleft()()
    second = join("lobby")
    while not crowd.delays:
        crowd.steps.popleft()()
    assert all(each.take() == [came(first)] for each in crowd.many)
    assert crowd.told() == [1] * MANY
    assert all(each.take() == [came(second)] for each in crowd.many)


def test_a_message_is_preceded_only_by_the_notice_of_its_sender(core: Core, crowd: CrowdedChannel, join: Make) -> None:
    """Else one step would tell everybody of all who came before."""
    newcomers = [join("lobby") for _ in range(3)]
    newcomers[1].receive_data(b"1")
    assert all(each.take() == [came(newcomers[1]), b"1"] for each in crowd.many)
    crowd.told()
    assert all(each.take() == [came(newcomers[0]), came(newcomers[2])] for each in crowd.many)
    assert not core.bus.presence.notices


def test_a_direct_message_is_preceded_only_by_the_notice_to_its_receiver(
    core: Core, crowd: CrowdedChannel, join: Make
) -> None:
    """Else who joins, sends one and leaves would cause a write for every listener each time."""
    receiver, *others = crowd.many
    newcomers = [join("lobby") for _ in range(2)]
    assert to(newcomers[1], receiver.peer.number) == 1
    assert receiver.take() == [came(newcomers[1]), b"1"]
    assert not any(each.heard for each in others)
    core.bus.leave(newcomers[1])
    crowd.told()
    assert receiver.take() == [came(newcomers[0]), left(newcomers[1])]
    assert all(each.take() == [came(newcomers[0])] for each in others)


def test_waiting_notices_come_before_a_list_of_peers(core: Core, crowd: CrowdedChannel, join: Make) -> None:
    """Else a list would be followed by notices of those who are in it."""
    newcomer = join("lobby")
    asking, *others = crowd.many
    assert newcomer.peer in core.bus.peers_in("lobby", asking)
    assert asking.take() == [came(newcomer)]
    assert not any(each.heard for each in others)
    crowd.told()
    assert not asking.heard
    assert all(each.take() == [came(newcomer)] for each in others)


def test_a_peer_that_left_between_rounds_is_announced_only_to_witnesses(
    core: Core, crowd: CrowdedChannel, join: Make
) -> None:
    passing = join("lobby")
    saw = join("lobby")
    core.bus.leave(passing)
    crowd.told()
    assert all(each.take() == [came(saw)] for each in crowd.many)
    assert saw.take() == [left(passing)]


def test_a_peer_that_leaves_and_returns_between_rounds_is_not_mentioned(core: Core, crowd: CrowdedChannel) -> None:
    away, *others = crowd.many
    core.bus.unsubscribe(away, "lobby")
    core.bus.subscribe(away, "lobby")
    crowd.told()
    assert not any(each.heard for each in others)


def test_a_peer_that_returns_under_another_name_is_announced_in_order(core: Core, crowd: CrowdedChannel) -> None:
    """Also if the channel is not crowded any more."""
    notices, few = core.bus.presence.notices, crowd.many[:FEW]
    notices.tell("lobby", Peer(1000, "toy", "before"), dict.fromkeys(crowd.many), joined=False)
    notices.tell("lobby", Peer(1000, "toy", "after"), dict.fromkeys(few), joined=True)
    crowd.told()
    assert all(each.take() == [("-", "lobby", 1000), ("+", "lobby", 1000)] for each in few)


def test_a_notice_cancels_only_the_one_before_it(core: Core, crowd: CrowdedChannel) -> None:
    """An identity may come and leave under several names, or on connections of several protocols."""
    notices = core.bus.presence.notices
    for name, joined in (("a", True), ("b", False), ("c", True), ("a", False)):
        notices.tell("lobby", Peer(1000, "toy", name), dict.fromkeys(crowd.many), joined=joined)
    crowd.told()
    assert all([sign for sign, _, _ in each.take()] == ["+", "-", "+", "-"] for each in crowd.many)


def test_a_session_that_stops_listening_gets_no_pending_notices(core: Core, crowd: CrowdedChannel, join: Make) -> None:
    newcomer = join("lobby")
    core.bus.unsubscribe(crowd.many[9], "lobby")
    core.bus.subscribe(crowd.many[9], "lobby")
    crowd.told()
    assert crowd.many[9].take() == [], "it was given those who are there"
    assert crowd.many[8].take() == [came(newcomer)]


def test_the_oldest_notice_is_delivered_at_once_if_too_many_wait(
    crowd: CrowdedChannel, join: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MAX_NOTICES", 2)
    newcomers = [join("lobby") for _ in range(3)]
    assert all(each.heard == [came(newcomers[0])] for each in crowd.many)
    crowd.told()
    assert all(each.take() == [came(newcomer) for newcomer in newcomers] for each in crowd.many)


def test_an_error_of_one_session_stops_no_other_notice(
    crowd: CrowdedChannel, join: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_channel: str, _peer: object) -> None:
        raise RuntimeError("a bug")

    broken, *others = crowd.many
    monkeypatch.setattr(broken, "peer_joined", fails)
    newcomer = join("lobby")
    while crowd.delays or crowd.steps:
        try:
            (crowd.steps or crowd.delays).popleft()()
        except RuntimeError:
            continue
    assert all(each.take() == [came(newcomer)] for each in others)
