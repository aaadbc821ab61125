"""Work in threads pauses between calls while other networks are served."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from gateway.core.buckets import TokenBuckets
from gateway.core.errors import Throttled, Unavailable
from gateway.core.read_pacer import ReadPacer
from gateway.http import thread_queue
from gateway.http.thread_queue import MAX_PAUSE, SHARE, ThreadQueue
from gateway.runtime import Gateway

BUSY = 0.02  # seconds
NEAR, FAR = "192.0.2.1", "192.0.2.2"


def work() -> None:
    """Use the processor for `BUSY`."""
    until = thread_time() + BUSY
    while thread_time() < until:
        pass


def fail() -> None:
    """Use the processor, and raise."""
    work()
    raise ZeroDivisionError


class PausedClock:
    """A clock that stands still but for pauses, which take no time."""

    def __init__(self) -> None:
        self.now = self.begun = 1024.0

    @property
    def paused(self) -> float:
        return self.now - self.begun

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PausedClock:
    made = PausedClock()
    monkeypatch.setattr(thread_queue, "sleep", made.sleep)
    monkeypatch.setattr(thread_queue, "monotonic", lambda: made.now)
    return made


def gateway(*networks: str) -> Gateway:
    """A gateway that has had input of *networks*, of the last one last."""
    read_pacer = ReadPacer(TokenBuckets(100, 1000, lambda: 1024.0), lambda: 1024.0)
    for network in networks:
        read_pacer.charge_network(network, 0.0)
    return cast("Gateway", SimpleNamespace(ready=True, bus=SimpleNamespace(read_pacer=read_pacer)))


def run(gateway: Gateway, *calls: Callable[[], None]) -> None:
    async def play() -> None:
        queue = ThreadQueue(1)
        for call in calls:
            try:
                await queue.run(gateway, NEAR, call)
            except ZeroDivisionError:
                assert call is fail

    anyio.run(play)


@pytest.mark.parametrize("networks", [(NEAR, FAR), (FAR, NEAR), (FAR,)])
@pytest.mark.parametrize("first", [work, fail])
def test_calls_use_a_share_of_the_time_beside_others(
    clock: PausedClock, networks: tuple[str, ...], first: Callable[[], None]
) -> None:
    run(gateway(*networks), first)
    assert clock.paused == 0.0
    run(gateway(*networks), first, work)
    assert BUSY * (1 / SHARE - 1) - 1e-6 <= clock.paused <= MAX_PAUSE


def test_a_network_that_is_alone_does_not_wait(clock: PausedClock) -> None:
    run(gateway(NEAR), work, work)
    assert clock.paused == 0.0


def test_a_pause_is_bounded(clock: PausedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 60.0, 60.0, 60.0])
    monkeypatch.setattr(thread_queue, "thread_time", lambda: next(times))
    run(gateway(NEAR, FAR), lambda: None, lambda: None)
    assert clock.paused == pytest.approx(MAX_PAUSE)


def test_a_pause_ends_with_a_refusal_when_the_gateway_stops(clock: PausedClock) -> None:
    stopping = gateway(NEAR, FAR)

    def stop() -> None:
        work()
        stopping.ready = False

    with pytest.raises(Unavailable):
        run(stopping, stop, work)
    assert clock.paused == 0.0


def test_too_many_waiting_requests_are_refused() -> None:
    async def play() -> None:
        queue, refused = ThreadQueue(1), list[int]()

        async def ask(number: int) -> None:
            try:
                await queue.run(gateway(NEAR), NEAR, work)
            except Throttled:
                refused.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, number)
        assert len(refused) == 1

    anyio.run(play)
