"""Shares an event loop between those who say little, who come first, and those who have much input.

A connection that uses more than `SHARE` of the loop is busy. What busy connections send, and each long read, is handled
a portion at a time: all of them together get one portion of about `TURN` in each turn of the loop, whoever has used
least lately first. That happens behind everything that the others brought on, so one who says little waits for what is
left of one portion. While nobody else says anything there is nobody to wait, and a portion is `LONG_TURN`.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.core.watchdog import Progress

TURN = 0.0005  # seconds of a turn of the loop that go to all busy connections together while others say something,
LONG_TURN = 0.002  # and while nobody does
CALM = 1.0  # seconds without anything from others after which nobody does
PATIENCE = 0.002  # seconds that busy connections wait while each turn of the loop brings something from others
SHARE = 0.05  # of the time: a connection that uses more of the loop is busy
ALLOWANCE = 0.005  # seconds that a connection may use at once before it counts as busy
MOST_USED = 10 * ALLOWANCE  # seconds that are held against a connection at most: one second of `SHARE`
MIN_PORTION, FIRST_PORTION, MAX_PORTION = 256, 4 << 10, 256 << 10  # bytes that are handled at once
CHEAP_SECONDS = LONG_TURN / 8  # seconds; a read that takes less is not accounted for


class Schedulable(Protocol):
    """A connection with input that is still to be handled."""

    def take_turn(self) -> None:
        """Handle some of the input; with more left, ask for another turn. Must not raise."""


class Turns:
    """Lets busy connections go on, who has used least lately first, for a short time in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.other_arrivals = 0  # what those have brought who are not busy
        self._loop = loop
        self._waiting: list[tuple[float, int, Schedulable]] = []  # a heap
        self._numbers = count()
        self._due = False  # a call of `_run` is on its way
        self._runs = 0
        self._spent = 0.0  # seconds of this turn of the loop that went to connections which are accounted for
        self._known = self._seen = 0  # `other_arrivals` at the last look at the time, and of `_run`
        self._last_arrival = -CALM  # (`perf_counter`) when it had grown
        self._yielding_since = 0.0  # since when those who wait are put off for others; 0 if they are not

    @property
    def progress(self) -> Progress:
        """What waits, and what was done."""
        return Progress(len(self._waiting), self._runs)

    def add(self, busy: Schedulable, priority: float) -> None:
        """Let *busy* take one of the next turns, once a call; the lowest *priority* comes first (`Load.priority`)."""
        heappush(self._waiting, (priority, next(self._numbers), busy))
        self._call()

    @property
    def shared(self) -> bool:
        """Whether others than busy connections have brought something lately."""
        now = perf_counter()
        if self._known != self.other_arrivals:
            self._known, self._last_arrival = self.other_arrivals, now
        return now - self._last_arrival < CALM

    @property
    def length(self) -> float:
        """Seconds that busy connections have of each turn now."""
        return TURN if self.shared else LONG_TURN

    @property
    def over(self) -> bool:
        """Whether busy connections have had all of this turn."""
        return self._spent >= self.length

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
        if self._yields():
            self._call()
            return
        self._spent = 0.0
        length = self.length
        try:
            for _ in range(len(self._waiting)):
                heappop(self._waiting)[2].take_turn()
                if self._spent >= length:
                    break
        finally:
            if self._waiting:
                self._call()

    def _yields(self) -> bool:
        """Whether others have brought something since the last look, which is then dealt with first."""
        if self.other_arrivals == self._seen:
            self._yielding_since = 0.0
            return False
        self._seen = self.other_arrivals
        now = perf_counter()
        self._yielding_since = self._yielding_since or now
        if now - self._yielding_since < PATIENCE:
            return True
        self._yielding_since = 0.0
        return False


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """The turns of *loop*."""
    return _turns.get(loop) or _turns.setdefault(loop, Turns(loop))


class Load:
    """How much of the loop a connection has used lately."""

    __slots__ = ("_level", "_then")

    def __init__(self) -> None:
        self._level = 0.0  # seconds used lately, which wear off
        self._then = 0.0

    @property
    def busy(self) -> bool:
        """Whether the connection has used more than its share."""
        return self._level > ALLOWANCE and self._level - (perf_counter() - self._then) * SHARE > ALLOWANCE

    @property
    def priority(self) -> float:
        """Where the connection stands among those that wait; the one that has used least lately is lowest."""
        return max(self._level + self._then * SHARE, perf_counter() * SHARE)

    def add(self, seconds: float, now: float) -> None:
        """The connection has used *seconds*, up to *now* (`perf_counter`)."""
        level = max(0.0, self._level - (now - seconds - self._then) * SHARE) + seconds
        self._level = min(MOST_USED, level)
        self._then = now


class Portion(Load):
    """How much of its input a connection handles at once as well, by what that was seen to cost."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        super().__init__()
        self.size = FIRST_PORTION  # bytes

    def used(self, begin: float, size: int, length: float = TURN) -> float:
        """*size* bytes were handled since *begin* (`perf_counter`), in a turn of *length*; how long that took.

        All are in seconds.
        """
        now = perf_counter()
        seconds = now - begin
        self.add(seconds, now)
        if seconds > length:
            self.size = max(MIN_PORTION, int(min(self.size, size) * length / seconds))
        elif size >= self.size and seconds < length / 4:
            self.size = min(MAX_PORTION, self.size * 2)
        return seconds
