"""Ten thousand sessions are ticked in many turns of the loop."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from gateway.core.ticking import TICK_SECONDS, tick_sessions

COUNT = 20


def sessions(ticked: list[int], seconds: float = 0.0) -> dict[Any, None]:
    """Sessions that note their number when they are ticked, and take so many *seconds* for it."""

    def session(number: int) -> Any:
        def tick(now: int) -> None:
            assert now == 7
            ticked.append(number)
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds:
                pass

        return Unique(tick=tick)

    return {session(number): None for number in range(COUNT)}


class Unique(SimpleNamespace):
    """It can be in a dictionary."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_others_have_a_turn_between_sessions_that_take_long() -> None:
    ticked: list[int] = []
    slices = list(tick_sessions(sessions(ticked, TICK_SECONDS * 1.1), 7))
    assert len(slices) == COUNT
    assert ticked == list(range(COUNT))


def test_a_session_that_leaves_meanwhile_is_not_ticked() -> None:
    ticked: list[int] = []
    found = sessions(ticked, TICK_SECONDS * 1.1)
    for _ in tick_sessions(found, 7):
        while len(found) > 1:
            found.popitem()
    assert ticked == [0]


def test_a_session_that_fails_is_closed_and_the_others_are_ticked() -> None:
    ticked: list[int] = []
    closed: list[int] = []

    def fail(_now: int) -> None:
        raise KeyError

    failing: Any = Unique(tick=fail, close=lambda code, _reason: closed.append(code))
    list(tick_sessions({failing: None, **sessions(ticked)}, 7))
    assert closed == [1011]
    assert ticked == list(range(COUNT))
