"""The lines of HTTP requests that wait while their network has used up its share of the loop.

Those that wait begin one after another, the oldest first. If all began as soon as the debt is paid, they would hold up
the loop together, and a network could have any number of requests for one wait; if each looked again by itself, looking
would cost more than answering. For the same reason no more than one of a line begins in each iteration of the loop:
what a request costs is known only afterwards.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

MIN_WAIT = 0.001  # seconds; uvloop calls what is due in less than half a millisecond again and again


class Line(NamedTuple):
    """Which connections wait for each other: new ones of *network* or others, and those that misbehaved apart."""

    network: str
    is_new: bool
    is_penalized: bool


class Waiter(Protocol):
    """A connection whose next request waits."""

    @property
    def line(self) -> Line:
        """The line that it belongs in."""

    @property
    def line_wait(self) -> float:
        """The seconds until the first of that line may begin."""

    def admit(self) -> None:
        """Begin."""


class NetworkLines:
    """Lets requests of a network begin as fast as its share of the loop allows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[Line, OrderedDict[Waiter, None]] = {}  # for each, one call of `_admit` is on its way
        self._places: dict[Waiter, Line] = {}

    def must_wait(self, waiter: Waiter) -> bool:
        """Whether *waiter*, a new connection, has to wait; if so, it is in line from now on."""
        name = waiter.line
        if name in self._lines or waiter.line_wait:
            self.join(waiter)
            return True
        self._open(name, 0.0)
        return False

    def join(self, waiter: Waiter, *, first: bool = False) -> None:
        """Let *waiter* begin when those before it have, none if it is *first*, and its network may have more."""
        if waiter in self._places:
            return
        name = self._places[waiter] = waiter.line
        if (line := self._lines.get(name)) is None:
            line = self._open(name, waiter.line_wait)
        line[waiter] = None
        line.move_to_end(waiter, last=not first)

    def leave(self, waiter: Waiter) -> None:
        """Forget *waiter*, which has ended."""
        if (name := self._places.pop(waiter, None)) is not None:
            del self._lines[name][waiter]

    def _open(self, name: Line, wait: float) -> OrderedDict[Waiter, None]:
        line = self._lines[name] = OrderedDict()
        self._admit_after(wait, name)
        return line

    def _admit_after(self, wait: float, name: Line) -> None:
        if wait:
            self._loop.call_later(max(wait, MIN_WAIT), self._admit, name)
        else:
            self._loop.call_soon(self._admit, name)

    def _admit(self, name: Line) -> None:
        """Let the first in line begin if its network may have more of the loop now."""
        line = self._lines[name]
        if not line:
            del self._lines[name]
            return
        first = next(iter(line))
        is_elsewhere = first.line != name  # it was penalised meanwhile, or no longer is
        wait = 0.0 if is_elsewhere else first.line_wait
        self._admit_after(wait, name)  # before the first begins, so that an error there does not stop it
        if is_elsewhere:
            self.leave(first)
            self.join(first)
        elif not wait:
            self.leave(first)
            first.admit()


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, NetworkLines] = WeakKeyDictionary()


def network_lines_of(loop: asyncio.AbstractEventLoop) -> NetworkLines:
    """Return the lines of *loop*."""
    return _lines.get(loop) or _lines.setdefault(loop, NetworkLines(loop))
