"""Long answers take turns, a bounded share of the loop, and a limited number of slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from gateway.core import answer_scheduler
from gateway.core.answer_scheduler import (
    BURST,
    MAX_SLOTS_PER_NETWORK,
    MAX_WAIT_SECONDS,
    QUIET_MS,
    AnswerScheduler,
    AnswerSlot,
    SlotState,
)
from gateway.core.loop_share import BUSY_SHARE


class ManualLoop:
    """An `AnswerScheduler` on a loop and with clocks of the test's own."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.pauses: list[float] = []
        self.now, self.seq = 0.0, 1
        self.charged: list[tuple[str, float]] = []
        self.answer_scheduler = AnswerScheduler(
            self.posted.append,
            self._later,
            lambda: self.seq,
            lambda: int(self.now * 1000),
            lambda: self.now,
            lambda network, seconds: self.charged.append((network, seconds)),
        )

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.pauses.append(seconds)
        self.posted.append(call)

    def turn(self) -> None:
        """Run what was posted up to now."""
        for _ in range(len(self.posted)):
            self.posted.popleft()()

    def ask(self, network: str) -> AnswerSlot:
        """A slot whose answer does nothing."""
        return self.answer_scheduler.request_slot(network, lambda: None)


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


def test_a_turn_of_the_loop_has_one_slice_and_networks_take_turns(loop: ManualLoop) -> None:
    made: list[str] = []
    for network in ("a", "a", "a", "b", "c"):
        loop.answer_scheduler.schedule(lambda network=network: made.append(network), network)  # type: ignore[misc]
    for count in range(1, 6):
        loop.turn()
        assert len(made) == count
    assert made == ["a", "b", "c", "a", "a"]
    assert not loop.posted
    assert loop.answer_scheduler.progress == (0, 5)


def test_each_slice_is_charged_to_its_network(loop: ManualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((1.0, 1.25, 2.0, 2.5))
    monkeypatch.setattr(answer_scheduler, "thread_time", lambda: next(ticks))
    for network in "ab":
        loop.answer_scheduler.schedule(lambda: None, network)
        loop.turn()
    assert loop.charged == [("a", 0.25), ("b", 0.5)]


def test_while_messages_are_published_answers_get_a_share_of_the_loop(loop: ManualLoop) -> None:
    loop.answer_scheduler.charge(BURST)
    loop.answer_scheduler.schedule(lambda: None, "a")
    assert not loop.pauses, "so much at once"
    loop.turn()
    loop.answer_scheduler.charge(0.01)
    loop.answer_scheduler.schedule(lambda: None, "a")
    assert loop.pauses == pytest.approx([0.01 / BUSY_SHARE], rel=0.1)
    loop.turn()
    loop.now = QUIET_MS / 1000
    loop.answer_scheduler.charge(100.0)
    loop.answer_scheduler.schedule(lambda: None, "a")
    assert len(loop.pauses) == 1, "nobody talks"
    loop.turn()
    loop.seq += 1
    loop.answer_scheduler.schedule(lambda: None, "a")
    assert len(loop.pauses) == 1, "what was used while nobody talked is not held against anybody"


def test_a_slice_that_fails_does_not_stop_the_others(loop: ManualLoop) -> None:
    made: list[int] = []
    loop.answer_scheduler.schedule(lambda: made.append(1 // 0), "a")
    loop.answer_scheduler.schedule(lambda: made.append(1), "b")
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    loop.turn()
    assert made == [1]


def test_slots_are_limited_for_each_network(loop: ManualLoop) -> None:
    slots = [loop.ask("a") for _ in range(MAX_SLOTS_PER_NETWORK + 2)]
    assert [slot.state for slot in slots[-3:]] == [SlotState.GRANTED, SlotState.WAITING, SlotState.WAITING]
    assert loop.ask("b").state is SlotState.GRANTED
    slots[-1].release()
    slots[0].release()
    assert [slot.state for slot in slots[-2:]] == [SlotState.GRANTED, SlotState.RELEASED]
    slots[0].release()
    assert loop.ask("a").state is SlotState.WAITING, "a slot is given back once"


def test_a_free_slot_goes_to_the_network_with_the_fewest(loop: ManualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS", 4)
    taken = [loop.ask(network) for network in "aaab"]
    greedy, other = loop.ask("a"), loop.ask("b")
    taken[0].release()
    assert (greedy.state, other.state) == (SlotState.WAITING, SlotState.GRANTED)
    taken[1].release()
    assert greedy.state is SlotState.GRANTED


def test_a_slot_is_refused_after_a_long_wait_or_if_the_queue_is_full(
    loop: ManualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_scheduler, "MAX_SLOTS_PER_NETWORK", 0)
    monkeypatch.setattr(answer_scheduler, "MAX_WAITING_PER_NETWORK", 1)
    told: list[str] = []
    slot = loop.answer_scheduler.request_slot("a", lambda: told.append("a"))
    assert loop.ask("a").state is SlotState.REFUSED
    monkeypatch.setattr(answer_scheduler, "MAX_WAITING", 1)
    assert loop.ask("b").state is SlotState.REFUSED
    loop.now = MAX_WAIT_SECONDS - 0.1
    loop.answer_scheduler.tick()
    assert slot.state is SlotState.WAITING
    loop.now = MAX_WAIT_SECONDS
    loop.answer_scheduler.tick()
    assert (slot.state, told) == (SlotState.REFUSED, ["a"])
    slot.release()
    assert loop.ask("a").state is SlotState.WAITING
