"""Long answers get more of the loop's time while it is idle."""

from __future__ import annotations

import pytest

from gateway.core.loop_share import BUSY_SHARE, IDLE_SHARE, LONG_SECONDS, WINDOW_SECONDS, LoopShare


class Loop:
    """A loop whose clocks a test moves."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0
        self.share = LoopShare(lambda: self.now, lambda: self.cpu)

    def work(self, seconds: float, *, answers: float = 0.0, others: float = 0.0) -> float:
        """Let *seconds* pass, of which answers and others use so much; return the price of a second."""
        self.now += seconds
        self.cpu += answers + others
        return self.share.price(answers) / answers if answers else self.share.price(0.0)


@pytest.mark.parametrize(("busy", "share"), [(0.0, IDLE_SHARE), (1.0, BUSY_SHARE), (0.5, 0.1)])
def test_the_share_follows_from_the_work_of_others(busy: float, share: float) -> None:
    loop = Loop()
    loop.work(1.0, answers=0.01)
    window = 2 * WINDOW_SECONDS
    assert loop.work(window, answers=0.01, others=busy * window) == pytest.approx(BUSY_SHARE / share)


def test_at_first_the_loop_counts_as_busy() -> None:
    assert Loop().work(0.0, answers=1.0) == 1.0


def test_the_share_is_the_same_within_a_window() -> None:
    loop = Loop()
    loop.work(1.0, answers=0.01)
    assert loop.work(WINDOW_SECONDS / 2, answers=0.01) == 1.0
    assert loop.work(WINDOW_SECONDS / 2, answers=0.01) == pytest.approx(BUSY_SHARE / IDLE_SHARE)


def test_more_work_than_time_counts_as_a_busy_loop() -> None:
    loop = Loop()
    loop.work(1.0, answers=0.01)
    assert loop.work(WINDOW_SECONDS, answers=0.01, others=5.0) == 1.0


def test_after_a_long_time_without_answers_the_loop_counts_as_busy() -> None:
    loop = Loop()
    loop.work(1.0, answers=0.01)
    assert loop.work(LONG_SECONDS + 0.1, answers=0.01) == 1.0
    assert loop.work(WINDOW_SECONDS, answers=0.01) < 1.0
