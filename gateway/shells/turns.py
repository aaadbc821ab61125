"""Shares an event loop between light connections, which go first, and busy ones.

A connection that uses more than `SHARE` of the loop is busy. The input of busy connections, and each long read, is
handled in portions: all busy connections together get one portion of about `TURN_SECONDS` in each iteration of the
loop, beginning with the one that has used least lately. Light connections are served before that, so they wait for the
rest of one portion at most. While only busy connections have input, a portion is `LONG_TURN_SECONDS`.

The long reads of light connections come before the portions of busy ones in all iterations but one in `BUSY_FIRST`,
the shortest first: a few kilobytes do not wait behind megabytes that hundreds of others send at the same time.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.core.watchdog import Progress

from .cpu_time import CpuClock, CpuTime, cpu_time

TURN_SECONDS = 0.0005  # that all busy connections together get of an iteration of the loop while light ones have input
LONG_TURN_SECONDS = 0.002  # the same while light connections have no input
SILENCE_SECONDS = 1.0  # without input from light connections, after which they count as having none
MAX_YIELD_SECONDS = 0.002  # that busy connections wait while each iteration brings input from light ones
SHARE = 0.05  # of the time: a connection that uses more of the loop is busy
ALLOWANCE_SECONDS = 0.005  # that a connection may use at once before it counts as busy
MOST_USED_SECONDS = 10 * ALLOWANCE_SECONDS  # of use that count at most: one second of `SHARE`
MIN_PORTION, FIRST_PORTION, MAX_PORTION = 256, 4 << 10, 256 << 10  # bytes that are handled at once
WAITING = 8  # a step that waits, for the disk but mostly for other programs, counts as an eighth of that time
BELIEVED_SECONDS = ALLOWANCE_SECONDS / 2  # by the clock that a step may count where its CPU time was not measured
WATCH_SECONDS = 10.0  # for which a connection's CPU time is measured once a step counted `BELIEVED_SECONDS` or more
CHEAP_SECONDS = LONG_TURN_SECONDS / 8  # a read that takes less is not accounted for
BUSY_FIRST = 4  # in one of so many iterations, busy connections come before long reads of light ones
BYTE_DELAY_SECONDS = 8e-6  # that each byte of a long read counts when these are ordered: two for the longest


class Schedulable(Protocol):
    """A connection with input that is still to be handled."""

    def take_turn(self) -> None:
        """Handle some of the input; with more left, ask for another turn. Must not raise."""


class Turns:
    """Gives busy connections a short time in each iteration of the loop, the one that used least lately first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.other_arrivals = 0  # reads and requests of connections that are not busy
        self.cpu_clock = CpuClock()
        self._loop = loop
        self._light: list[tuple[float, int, Schedulable]] = []  # a heap: long reads of light connections
        self._busy: list[tuple[float, int, Schedulable]] = []  # a heap
        self._numbers = count()
        self._due = False  # a call of `_run` is on its way
        self._runs = 0
        self._spent = 0.0  # seconds of this iteration that connections used, as far as they are accounted for
        self._known = 0  # `other_arrivals` when `shared` was last asked
        self._seen = 0  # `other_arrivals` at the last `_run`
        self._last_arrival = -SILENCE_SECONDS  # when `other_arrivals` was last seen to have grown (`perf_counter`)
        self._yielding_since = 0.0  # when busy connections began to wait for light ones (`perf_counter`), or 0

    @property
    def progress(self) -> Progress:
        """Return how many connections wait and how often turns were given, for the watchdog."""
        return Progress(len(self._light) + len(self._busy), self._runs)

    def add(self, busy: Schedulable, priority: float) -> None:
        """Give *busy* one turn for each call; the lowest *priority* (see `LoopUsage.priority`) comes first."""
        heappush(self._busy, (priority, next(self._numbers), busy))
        self._call()

    def add_light(self, light: Schedulable, size: int) -> None:
        """Give *light*, which has *size* bytes of input, a turn before those of busy connections."""
        heappush(self._light, (perf_counter() + size * BYTE_DELAY_SECONDS, next(self._numbers), light))
        self._call()

    @property
    def shared(self) -> bool:
        """Whether connections that are not busy had input lately."""
        now = perf_counter()
        if self._known != self.other_arrivals:
            self._known, self._last_arrival = self.other_arrivals, now
        return now - self._last_arrival < SILENCE_SECONDS

    @property
    def budget_seconds(self) -> float:
        """Return the seconds that busy connections get of each iteration of the loop now."""
        return TURN_SECONDS if self.shared else LONG_TURN_SECONDS

    @property
    def is_used_up(self) -> bool:
        """Whether busy connections have used up their share of this iteration of the loop."""
        return self._spent >= self.budget_seconds

    def spend(self, seconds: float) -> None:
        """Record that a connection has used *seconds* of this iteration of the loop."""
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
        self._due = False  # first: whatever happens below, the next `add` schedules a call
        self._runs += 1
        if self._yields():
            self._call()
            return
        self._spent = 0.0
        budget, light, busy = self.budget_seconds, self._light, self._busy
        try:
            for waiting in (light, busy) if self._runs % BUSY_FIRST else (busy, light):
                for _ in range(len(waiting)):
                    heappop(waiting)[2].take_turn()
                    if self._spent >= budget:
                        return
        finally:
            if light or busy:
                self._call()

    def _yields(self) -> bool:
        """Whether to wait once more: light connections had input since the last call, and are served first."""
        if self.other_arrivals == self._seen:
            self._yielding_since = 0.0
            return False
        self._seen = self.other_arrivals
        now = perf_counter()
        self._yielding_since = self._yielding_since or now
        if now - self._yielding_since < MAX_YIELD_SECONDS:
            return True
        self._yielding_since = 0.0
        return False


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Return the turns of *loop*."""
    return _turns.get(loop) or _turns.setdefault(loop, Turns(loop))


class LoopUsage:
    """How much of the loop a connection has used lately.

    Reading the clock costs nothing, but it runs on while other programs have the processor. A step that took long by
    the clock therefore counts only in part, and for a while the CPU time is measured, at four calls to the kernel a
    step. The CPU time of the loop's thread decides whether a connection is busy. That of the whole process is charged
    to its network, because other threads work on its requests too, and the loop waits for them.
    """

    __slots__ = ("_level", "_then", "_watched_until")

    def __init__(self) -> None:
        self._level = 0.0  # seconds used lately, which decay
        self._then = 0.0
        self._watched_until = 0.0  # (`perf_counter`)

    def begin(self) -> CpuTime | None:
        """Return the CPU time so far if that is to be measured now, else None; see `cpu_since`."""
        return cpu_time() if self._watched_until and perf_counter() < self._watched_until else None

    @property
    def busy(self) -> bool:
        """Whether the connection has used more than its share."""
        level = self._level
        return level > ALLOWANCE_SECONDS and level - (perf_counter() - self._then) * SHARE > ALLOWANCE_SECONDS

    @property
    def priority(self) -> float:
        """Return the rank of the connection among those that wait; the one that used least lately is lowest."""
        return max(self._level + self._then * SHARE, perf_counter() * SHARE)

    def add(self, seconds: float, now: float, worked: CpuTime | None = None) -> float:
        """Record what took *seconds* up to *now* (`perf_counter`).

        *worked* is the CPU time used meanwhile, None if that was not measured. Return the seconds to charge. Other
        programs may have had the processor, so these are the CPU time of the process if it was measured, and at most
        `BELIEVED_SECONDS` if it was not.
        """
        charged = used = min(seconds, BELIEVED_SECONDS)
        if worked is not None:
            used = max(min(worked.thread, seconds), seconds / WAITING)
            charged = max(used, min(worked.process, seconds))
        if used >= BELIEVED_SECONDS:
            self._watched_until = now + WATCH_SECONDS
        level = max(0.0, self._level - (now - seconds - self._then) * SHARE) + used
        self._level = min(MOST_USED_SECONDS, level)
        self._then = now
        return charged


class Portion(LoopUsage):
    """The load of a connection, and how many bytes of its input to handle at once, as measured."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        super().__init__()
        self.size = FIRST_PORTION  # bytes

    def used(self, begin: float, size: int, budget: float = TURN_SECONDS, worked: CpuTime | None = None) -> float:
        """Record that *size* bytes were handled since *begin* (`perf_counter`), out of a budget of *budget* seconds.

        *worked* is the CPU time used meanwhile, None if that was not measured. Other programs may have had the
        rest of the time, so waiting counts an eighth (`WAITING`). Return the seconds to charge, as `add` does.
        """
        now = perf_counter()
        seconds = now - begin
        charged = self.add(seconds, now, worked)
        cost = max(worked.thread if worked is not None else 0.0, seconds / WAITING)
        if cost > budget:
            self.size = max(MIN_PORTION, int(min(self.size, size) * budget / cost))
        elif size >= self.size and cost < budget / 4:
            self.size = min(MAX_PORTION, self.size * 2)
        return charged
