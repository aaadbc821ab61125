"""HTTP requests of one network wait in a queue while it has used up its share of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.shells.waiting_requests import NetworkQueues, QueueName


class Owing:
    """A network: how long it has to wait, and which of its connections have begun."""

    def __init__(self, name: str, wait: float = 0.0) -> None:
        self.name = name
        self.wait = wait
        self.asked = 0
        self.begun: list[Waiting] = []


class Waiting:
    """A connection of *network*, each of which uses up its share again."""

    fails = False
    is_penalized = False

    def __init__(self, network: Owing, cost: float = 0.0) -> None:
        self.network = network.name
        self._of = network
        self._cost = cost

    @property
    def queue_name(self) -> QueueName:
        return QueueName(self.network, is_new=True, is_penalized=self.is_penalized)

    @property
    def queue_wait(self) -> float:
        self._of.asked += 1
        return self._of.wait

    def admit(self) -> None:
        self._of.begun.append(self)
        self._of.wait = self._cost
        if self.fails:
            raise RuntimeError("a bug")


def play(scenario: Callable[[NetworkQueues], Awaitable[None]]) -> NetworkQueues:
    async def play() -> NetworkQueues:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)
        queues = NetworkQueues(loop)
        await scenario(queues)
        async with asyncio.timeout(20):
            while queues._queues:
                await asyncio.sleep(0.001)
        return queues

    return asyncio.run(play())


def test_waiters_begin_in_order_one_after_another() -> None:
    owing = Owing("owing", 0.001)
    waiting = [Waiting(owing, cost=0.001) for _ in range(5)]

    async def scenario(queues: NetworkQueues) -> None:
        assert all(queues.must_wait(each) for each in waiting[:4])
        owing.wait = 0.0
        assert queues.must_wait(waiting[4]), "others came before"
        while not owing.begun:
            await asyncio.sleep(0)
        assert owing.begun == waiting[:1]
        while owing.begun != waiting:
            owing.wait = 0.0
            await asyncio.sleep(0.001)

    play(scenario)


def test_one_waiter_begins_in_each_iteration_of_the_loop_even_without_debts() -> None:
    """Else hundreds that come at once would begin before it is known what the first of them costs."""
    owing = Owing("owing")
    waiting = [Waiting(owing) for _ in range(4)]

    async def scenario(queues: NetworkQueues) -> None:
        assert [queues.must_wait(each) for each in waiting] == [False, True, True, True]
        for count in range(3):
            assert owing.begun == waiting[1 : count + 1]
            await asyncio.sleep(0)

    play(scenario)
    assert owing.begun == waiting[1:]


def test_a_network_without_debt_does_not_wait() -> None:
    async def scenario(queues: NetworkQueues) -> None:
        owing = Owing("owing", 0.001)
        assert queues.must_wait(Waiting(owing))
        assert not queues.must_wait(Waiting(Owing("fair")))
        owing.wait = 0.0

    play(scenario)


def test_ended_waiters_are_skipped_and_an_error_stops_no_other() -> None:
    owing = Owing("owing", 0.001)
    gone, broken, last = (Waiting(owing) for _ in range(3))
    broken.fails = True

    async def scenario(queues: NetworkQueues) -> None:
        anybody: list[Any] = [gone, broken, last]
        assert all(queues.must_wait(each) for each in anybody)
        queues.leave(gone)
        queues.leave(Waiting(Owing("unknown")))
        owing.wait = 0.0

    play(scenario)
    assert owing.begun == [broken, last]


def test_only_the_first_in_queue_is_checked() -> None:
    """Hundreds that each looked again when the debt is paid would cost more than the answers."""
    owing = Owing("owing", 0.001)

    async def scenario(queues: NetworkQueues) -> None:
        for _ in range(100):
            queues.join(Waiting(owing))
        owing.asked = 0
        for _ in range(3):
            queues._admit(Waiting(owing).queue_name)
        assert owing.asked == 3
        owing.wait = 0.0

    play(scenario)
    assert len(owing.begun) == 100


def test_penalized_connections_wait_in_a_separate_line() -> None:
    penalty, debt = Owing("owing", 0.02), Owing("owing", 0.001)

    async def scenario(queues: NetworkQueues) -> None:
        bad, good = Waiting(penalty), Waiting(debt)
        bad.is_penalized = True
        assert queues.must_wait(bad)
        assert not queues.must_wait(Waiting(Owing("owing")))
        assert queues.must_wait(good)
        debt.wait = 0.0
        while not debt.begun:
            await asyncio.sleep(0)
        assert not penalty.begun
        queues.leave(bad)

    play(scenario)
    assert not penalty.begun


def test_a_waiter_penalized_in_queue_delays_no_other() -> None:
    debt = Owing("owing", 0.001)
    bad, good = Waiting(Owing("owing", 60.0)), Waiting(debt)

    async def scenario(queues: NetworkQueues) -> None:
        queues.join(bad)
        queues.join(good)
        bad.is_penalized = True
        queues._admit(good.queue_name)
        assert queues._places[bad].is_penalized
        debt.wait = 0.0
        queues._admit(good.queue_name)
        assert debt.begun == [good]
        queues.leave(bad)
        queues._admit(bad.queue_name)

    play(scenario)


def test_a_waiter_that_has_begun_continues_before_others() -> None:
    owing = Owing("owing", 0.001)
    waiting = [Waiting(owing) for _ in range(3)]

    async def scenario(queues: NetworkQueues) -> None:
        queues.join(waiting[0])
        queues.join(waiting[1])
        queues.join(waiting[2], first=True)
        owing.wait = 0.0

    play(scenario)
    assert owing.begun == [waiting[2], waiting[0], waiting[1]]
