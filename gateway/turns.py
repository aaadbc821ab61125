"""Shares an event loop among connections that have more input than one turn of the loop should take.

Nothing that a connection sends occupies the loop for much longer than `TURN`: what is left waits for the next turn,
after everybody else's. Where the connections that keep the loop busy have used up a turn, they are served here, one
after the other, and one that says little is served at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from .watchdog import Progress

TURN = 0.002  # seconds of a turn of the loop that go to all busy connections together
SHARE = 0.2  # of the time: a connection that uses more of the loop is busy
ALLOWANCE = 0.005  # seconds that a connection may use at once before it counts as busy
LEAST, FIRST, MOST = 256, 4 << 10, 256 << 10  # bytes that are handled at once: at least, at first, at most
CHEAP = TURN / 8  # seconds; a read that takes less is not accounted for


class Busy(Protocol):
    """A connection with input that is still to be handled."""

    def go_on(self) -> None:
        """Handle some of the input; with more left, ask for another turn. Must not raise."""


class Turns:
    """Lets busy connections go on, one after the other, for a short time in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Busy] = deque()
        self._due = False  # a call of `_run` is on its way
        self._runs = 0
        self._spent = 0.0  # seconds of this turn of the loop that went to connections which are accounted for

    @property
    def progress(self) -> Progress:
        """What waits, and what was done."""
        return Progress(len(self._waiting), self._runs)

    def add(self, busy: Busy) -> None:
        """Let *busy* go on in one of the next turns; once for each call."""
        self._waiting.append(busy)
        self._call()

    @property
    def over(self) -> bool:
        """Whether busy connections have had all of this turn."""
        return self._spent >= TURN

    def spend(self, seconds: float) -> None:
        """A connection has used *seconds* of this turn."""
        if not self._spent:
            self._loop.call_soon(self._begin)
        self._spent += seconds

    def _begin(self) -> None:
        self._spent = 0.0

    def _call(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._due = False  # first: whatever happens below, the next `add` is heard
        self._runs += 1
        self._spent = 0.0
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft().go_on()
                if self._spent >= TURN:
                    break
        finally:
            if self._waiting:
                self._call()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """The turns of *loop*."""
    return _turns.get(loop) or _turns.setdefault(loop, Turns(loop))


class Portion:
    """How much of its input one connection handles at once, by what that was seen to cost, and whether it is busy."""

    __slots__ = ("_level", "_then", "size")

    def __init__(self) -> None:
        self.size = FIRST  # bytes
        self._level = 0.0  # seconds used lately, which wear off
        self._then = 0.0

    @property
    def busy(self) -> bool:
        """Whether the connection used more than its share at the last `used`."""
        return self._level > ALLOWANCE and self._level - (perf_counter() - self._then) * SHARE > ALLOWANCE

    def used(self, begin: float, size: int) -> float:
        """*size* bytes were handled since *begin* (`perf_counter`); how many seconds that took."""
        now = perf_counter()
        seconds = now - begin
        self._level = max(0.0, self._level - (begin - self._then) * SHARE) + seconds
        self._then = now
        if seconds > TURN:
            self.size = max(LEAST, int(min(self.size, size) * TURN / seconds))
        elif size >= self.size and seconds < TURN / 4:
            self.size = min(MOST, self.size * 2)
        return seconds
