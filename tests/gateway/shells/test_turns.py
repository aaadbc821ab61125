"""Connections with much input share the event loop with all others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.shells.cpu_time import CpuTime
from gateway.shells.turns import (
    ALLOWANCE_SECONDS,
    BELIEVED_SECONDS,
    BUSY_FIRST,
    BYTE_DELAY_SECONDS,
    FIRST_PORTION,
    LONG_TURN_SECONDS,
    MAX_PORTION,
    MAX_YIELD_SECONDS,
    MIN_PORTION,
    MOST_USED_SECONDS,
    SHARE,
    SILENCE_SECONDS,
    TURN_SECONDS,
    WAITING,
    WATCH_SECONDS,
    LoopUsage,
    Portion,
    Turns,
)


class Busy:
    def __init__(self, turns: Turns, portions: int, seconds: float = 0.0) -> None:
        self.left = portions
        self._turns = turns
        self._seconds = seconds

    def take_turn(self) -> None:
        self.left -= 1
        self._turns.spend(self._seconds)
        if self.left:
            self._turns.add(self, -self.left)


class Noted:
    """Notes its name when it has a turn, which takes the whole of the time."""

    def __init__(self, turns: Turns, done: list[Any], name: object) -> None:
        self._turns = turns
        self._done = done
        self._name = name

    def take_turn(self) -> None:
        self._done.append(self._name)
        self._turns.spend(LONG_TURN_SECONDS)


class SteppedClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    clock = SteppedClock()
    monkeypatch.setattr("gateway.shells.turns.perf_counter", clock)
    return clock


def test_other_connections_have_a_turn_after_each_long_portion() -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        busy = [Busy(turns, 5, LONG_TURN_SECONDS) for _ in range(2)]
        for one in busy:
            turns.add(one, -one.left)
        for done in range(1, 11):
            await asyncio.sleep(0)
            assert 10 - sum(one.left for one in busy) == done
            assert abs(busy[0].left - busy[1].left) <= 1, "and they take turns"

    asyncio.run(check())


def test_the_connection_that_used_least_lately_goes_first(clock: SteppedClock) -> None:
    loads = [LoopUsage() for _ in range(3)]
    loads[0].add(0.03, clock.now, both(0.03))
    loads[1].add(0.01, clock.now, both(0.01))
    clock.now += 0.1
    loads[2].add(0.02, clock.now, both(0.02))  # the others' has worn off a little
    assert sorted(range(3), key=lambda n: loads[n].priority) == [1, 2, 0]

    async def check() -> None:
        turns, done = Turns(asyncio.get_running_loop()), list[int]()
        for number in (0, 1, 2):
            turns.add(Noted(turns, done, number), loads[number].priority)
        for count in (1, 2, 3):
            await asyncio.sleep(0)
            assert done == [1, 2, 0][:count]

    asyncio.run(check())


def test_a_turn_is_shorter_while_others_have_input(clock: SteppedClock) -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        for length in (LONG_TURN_SECONDS, TURN_SECONDS, LONG_TURN_SECONDS):
            assert turns.budget_seconds == length
            turns.spend(length * 0.75)
            assert not turns.is_used_up
            turns.spend(length / 2)
            assert turns.is_used_up
            await asyncio.sleep(0)
            assert not turns.is_used_up
            if length == LONG_TURN_SECONDS:
                turns.other_arrivals += 1
            else:
                clock.now += SILENCE_SECONDS

    asyncio.run(check())


def test_busy_connections_yield_to_light_ones_for_a_bounded_time(clock: SteppedClock) -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        busy = Busy(turns, 3, LONG_TURN_SECONDS)
        turns.add(busy, 0.0)
        for left in (2, 1):
            for _ in range(10):
                turns.other_arrivals += 1
                await asyncio.sleep(0)
                assert busy.left == left + 1
            clock.now += 2 * MAX_YIELD_SECONDS
            turns.other_arrivals += 1
            await asyncio.sleep(0)
            assert busy.left == left
        await asyncio.sleep(0)
        assert busy.left == 0, "nobody brought anything: no turn of the loop is left unused"

    asyncio.run(check())


def test_portions_that_take_no_time_share_one_turn() -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        busy = [Busy(turns, 3) for _ in range(10)]
        for one in busy:
            turns.add(one, 0.0)
        for _ in range(30):  # three are enough, unless the machine is busy
            await asyncio.sleep(0)
        assert [one.left for one in busy] == [0] * 10

    asyncio.run(check())


def test_short_reads_come_before_long_ones_and_busy_connections(
    clock: SteppedClock,
) -> None:
    async def check() -> None:
        turns, done = Turns(asyncio.get_running_loop()), list[str]()
        turns.add(Noted(turns, done, "busy"), 0.0)
        turns.add(Noted(turns, done, "busier"), 1.0)
        for name, size in (("long", MAX_PORTION), ("older", MAX_PORTION), ("short", FIRST_PORTION)):
            turns.add_light(Noted(turns, done, name), size)
            clock.now += 0.01
        assert turns.progress.waiting == 5
        await asyncio.sleep(0)
        assert done == ["short"]
        clock.now += 3 * MAX_PORTION * BYTE_DELAY_SECONDS
        turns.add_light(Noted(turns, done, "late"), FIRST_PORTION)
        for _ in range(BUSY_FIRST + 1):
            await asyncio.sleep(0)
        assert done == ["short", "long", "older", "busy", "late", "busier"], "nobody waits for ever"

    asyncio.run(check())


def test_a_failure_does_not_end_the_turns_of_others() -> None:
    class Failing:
        def take_turn(self) -> None:
            raise ZeroDivisionError

    async def check() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)
        turns = Turns(loop)
        busy = Busy(turns, 2)
        turns.add(Failing(), 0.0)
        turns.add(busy, 1.0)
        await asyncio.sleep(0)
        turns.add(busy, 1.0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert busy.left <= 0

    asyncio.run(check())


def test_a_portion_shrinks_while_it_takes_long_and_grows_while_it_does_not(clock: SteppedClock) -> None:
    portion = Portion()
    assert portion.size == FIRST_PORTION
    portion.used(clock.now - 2 * TURN_SECONDS, portion.size, worked=both(2 * TURN_SECONDS))
    assert FIRST_PORTION / 3 < portion.size < FIRST_PORTION / 1.9
    portion.used(clock.now - 1000 * TURN_SECONDS, portion.size, worked=both(1000 * TURN_SECONDS))
    assert portion.size == MIN_PORTION
    assert portion.busy
    for _ in range(20):
        portion.used(clock.now, portion.size)
    assert portion.size == MAX_PORTION
    portion.used(clock.now, 1)
    assert portion.size == MAX_PORTION, "a short read says nothing"


def test_a_portion_does_not_shrink_because_other_programs_had_the_processor(clock: SteppedClock) -> None:
    portion = Portion()
    portion.used(clock.now - 4 * TURN_SECONDS, portion.size, worked=both(TURN_SECONDS / 2))
    assert portion.size == FIRST_PORTION
    portion.used(clock.now - 4 * TURN_SECONDS, portion.size, worked=both(TURN_SECONDS / 8))
    assert portion.size == FIRST_PORTION
    portion.used(clock.now - 80 * TURN_SECONDS, portion.size, worked=both(TURN_SECONDS / 8))
    assert portion.size < FIRST_PORTION / 9, "it waited too long, perhaps for the disk"


def test_a_connection_that_uses_the_loop_now_and_then_is_not_busy(clock: SteppedClock) -> None:
    load = LoopUsage()
    for _ in range(100):
        clock.now += 0.001
        load.add(0.001, clock.now)
        assert not load.busy
        clock.now += 0.001 / SHARE
    for _ in range(int(ALLOWANCE_SECONDS / 0.001) + 1):
        clock.now += 0.001
        load.add(0.001, clock.now)
    assert load.busy
    clock.now += 1.0
    assert not load.busy


def test_a_connection_is_not_busy_because_other_programs_had_the_processor(clock: SteppedClock) -> None:
    """Twenty requests a second of 0.5 ms, each of which takes 8 ms by the clock; and twenty that do take 8 ms."""
    honest, busy = LoopUsage(), LoopUsage()
    assert honest.begin() is None, "the call to the kernel is spared"
    for number in range(40):
        clock.now += 0.05
        for load, work in ((honest, 0.0005), (busy, 0.008)):
            load.add(0.008, clock.now, both(work) if number else None)
            assert load.begin() is not None, "its CPU time is measured from now on"
        assert not honest.busy
    assert busy.busy
    clock.now += WATCH_SECONDS
    assert honest.begin() is None


def test_a_step_long_only_by_the_clock_makes_no_connection_busy(clock: SteppedClock) -> None:
    load = LoopUsage()
    assert load.add(0.1, clock.now) == BELIEVED_SECONDS
    assert not load.busy
    assert load.add(0.1, clock.now, both(0.1)) == 0.1
    assert load.busy


def both(seconds: float) -> CpuTime:
    return CpuTime(seconds, seconds)


def test_cpu_time_is_charged_where_it_was_measured(clock: SteppedClock) -> None:
    assert LoopUsage().add(0.008, clock.now, both(0.004)) == 0.004
    assert LoopUsage().add(0.008, clock.now, both(0.0005)) == 0.008 / WAITING, "it may have waited for the disk"
    assert Portion().used(clock.now - 0.008, 1, worked=both(0.004)) == 0.004


def test_cpu_time_of_other_threads_is_charged_but_makes_no_connection_busy(clock: SteppedClock) -> None:
    """They may work for somebody else; it is the network that pays, never more than the time by the clock."""
    load = LoopUsage()
    assert load.add(0.008, clock.now, CpuTime(thread=0.001, process=0.007)) == 0.007
    assert load.add(0.008, clock.now, CpuTime(thread=0.001, process=0.012)) == 0.008
    assert not load.busy


def test_nothing_is_charged_more_than_it_took_by_the_clock(clock: SteppedClock) -> None:
    """A reading of the CPU time that several steps share includes what was done before them."""
    load = LoopUsage()
    assert load.add(ALLOWANCE_SECONDS, clock.now, both(1.0)) == ALLOWANCE_SECONDS
    assert not load.busy


def test_the_remembered_usage_of_a_connection_is_bounded(clock: SteppedClock) -> None:
    load = LoopUsage()
    load.add(1000.0, clock.now, both(1000.0))
    assert load.busy
    clock.now += MOST_USED_SECONDS / SHARE
    assert not load.busy
    assert load.priority <= LoopUsage().priority, "and nobody new comes before it any more"
