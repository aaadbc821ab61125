"""How connections with much input share the event loop with the others."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from gateway.turns import FIRST, LEAST, MOST, TURN, Portion, Turns


class Busy:
    def __init__(self, turns: Turns, portions: int, seconds: float = 0.0) -> None:
        self.left = portions
        self._turns = turns
        self._seconds = seconds

    def go_on(self) -> None:
        self.left -= 1
        self._turns.spend(self._seconds)
        if self.left:
            self._turns.add(self)


def test_everybody_else_has_a_turn_after_each_portion_that_takes_long() -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        busy = [Busy(turns, 5, 2 * TURN) for _ in range(2)]
        for one in busy:
            turns.add(one)
        for done in range(1, 11):
            await asyncio.sleep(0)
            assert 10 - sum(one.left for one in busy) == done
            assert abs(busy[0].left - busy[1].left) <= 1, "and they take turns"

    asyncio.run(check())


def test_a_turn_is_over_when_it_is_used_up_and_the_next_one_is_not() -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        turns.spend(TURN / 2)
        assert not turns.over
        turns.spend(TURN / 2)
        assert turns.over
        await asyncio.sleep(0)
        assert not turns.over

    asyncio.run(check())


def test_portions_that_take_no_time_share_one_turn() -> None:
    async def check() -> None:
        turns = Turns(asyncio.get_running_loop())
        busy = [Busy(turns, 3) for _ in range(10)]
        for one in busy:
            turns.add(one)
        for _ in range(30):  # three are enough, unless the machine is busy
            await asyncio.sleep(0)
        assert [one.left for one in busy] == [0] * 10

    asyncio.run(check())


def test_a_failure_does_not_end_the_turns_of_others() -> None:
    class Failing:
        def go_on(self) -> None:
            raise ZeroDivisionError

    async def check() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)
        turns = Turns(loop)
        busy = Busy(turns, 2)
        turns.add(Failing())
        turns.add(busy)
        await asyncio.sleep(0)
        turns.add(busy)
        for _ in range(5):
            await asyncio.sleep(0)
        assert busy.left <= 0

    asyncio.run(check())


def test_a_portion_shrinks_while_it_takes_long_and_grows_while_it_does_not() -> None:
    portion = Portion()
    assert portion.size == FIRST
    portion.used(perf_counter() - 2 * TURN, portion.size)
    assert FIRST / 3 < portion.size < FIRST / 1.9
    portion.used(perf_counter() - 1000 * TURN, portion.size)
    assert portion.size == LEAST
    assert portion.busy
    for _ in range(20):
        portion.used(perf_counter(), portion.size)
    assert portion.size == MOST
    portion.used(perf_counter(), 1)
    assert portion.size == MOST, "a short read says nothing"


def test_a_connection_that_uses_the_loop_now_and_then_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("gateway.turns.perf_counter", lambda: now)
    portion = Portion()
    for _ in range(100):
        begin, now = now, now + 0.001
        portion.used(begin, 100)
        assert not portion.busy
        now += 0.01
    for _ in range(10):
        begin, now = now, now + 0.001
        portion.used(begin, 100)
    assert portion.busy
    now += 1.0
    assert not portion.busy
