"""Long answers: whose turn it is, how much of the loop's time they take, and who gets a place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from gateway.core import outflow
from gateway.core.outflow import BURST, CALM, PATIENCE, PLACES_EACH, SHARE, Outflow, Place, State


class Loop:
    """An `Outflow` on a loop and with clocks of the test's own."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.pauses: list[float] = []
        self.now, self.seq = 0.0, 1
        self.outflow = Outflow(
            self.posted.append, self._later, lambda: self.seq, lambda: int(self.now * 1000), lambda: self.now
        )

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.pauses.append(seconds)
        self.posted.append(call)

    def turn(self) -> None:
        """Run what was posted up to now."""
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    def ask(self, network: str) -> Place:
        """A place whose answer does nothing."""
        return self.outflow.ask(network, lambda: None)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_turn_of_the_loop_has_one_slice_and_networks_take_turns(loop: Loop) -> None:
    made: list[str] = []
    for network in ("a", "a", "a", "b", "c"):
        loop.outflow.give(lambda network=network: made.append(network), network)  # type: ignore[misc]
    for count in range(1, 6):
        loop.turn()
        assert len(made) == count
    assert made == ["a", "b", "c", "a", "a"]
    assert not loop.posted
    assert loop.outflow.progress == (0, 5)


def test_while_somebody_talks_answers_have_a_share_of_the_time(loop: Loop) -> None:
    loop.outflow.spend(BURST)
    loop.outflow.give(lambda: None, "a")
    assert not loop.pauses, "so much at once"
    loop.turn()
    loop.outflow.spend(0.01)
    loop.outflow.give(lambda: None, "a")
    assert loop.pauses == pytest.approx([0.01 / SHARE], rel=0.1)
    loop.turn()
    loop.now = CALM / 1000
    loop.outflow.spend(100.0)
    loop.outflow.give(lambda: None, "a")
    assert len(loop.pauses) == 1, "nobody talks"
    loop.turn()
    loop.seq += 1
    loop.outflow.give(lambda: None, "a")
    assert len(loop.pauses) == 1, "what was used while nobody talked is not held against anybody"


def test_a_slice_that_fails_does_not_stop_the_others(loop: Loop) -> None:
    made: list[int] = []
    loop.outflow.give(lambda: made.append(1 // 0), "a")
    loop.outflow.give(lambda: made.append(1), "b")
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    loop.turn()
    assert made == [1]


def test_a_network_has_so_many_places_and_the_others_have_theirs(loop: Loop) -> None:
    places = [loop.ask("a") for _ in range(PLACES_EACH + 2)]
    assert [place.state for place in places[-3:]] == [State.TAKEN, State.WAITING, State.WAITING]
    assert loop.ask("b").state is State.TAKEN
    places[-1].leave()
    places[0].leave()
    assert [place.state for place in places[-2:]] == [State.TAKEN, State.OVER]
    places[0].leave()
    assert loop.ask("a").state is State.WAITING, "a place is given back once"


def test_a_free_place_goes_to_the_network_with_fewest(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outflow, "PLACES", 4)
    taken = [loop.ask(network) for network in "aaab"]
    greedy, other = loop.ask("a"), loop.ask("b")
    taken[0].leave()
    assert (greedy.state, other.state) == (State.WAITING, State.TAKEN)
    taken[1].leave()
    assert greedy.state is State.TAKEN


def test_who_waits_for_long_or_with_too_many_is_refused(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outflow, "PLACES_EACH", 0)
    monkeypatch.setattr(outflow, "WAITING_EACH", 1)
    told: list[str] = []
    place = loop.outflow.ask("a", lambda: told.append("a"))
    assert loop.ask("a").state is State.REFUSED
    monkeypatch.setattr(outflow, "WAITING", 1)
    assert loop.ask("b").state is State.REFUSED
    loop.now = PATIENCE - 0.1
    loop.outflow.tick()
    assert place.state is State.WAITING
    loop.now = PATIENCE
    loop.outflow.tick()
    assert (place.state, told) == (State.REFUSED, ["a"])
    place.leave()
    assert loop.ask("a").state is State.WAITING
