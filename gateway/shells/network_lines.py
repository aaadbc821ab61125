"""Queues of HTTP requests that wait while their network has used up its share of the loop.

A queue is called a line here. The requests in it begin one after another, the oldest first. If all of them began as
soon as the debt is paid, together they would hold up the loop, and a network could have any number of requests for one
wait. If each checked the debt by itself, checking would cost more than answering. A line admits one request in each
iteration of the loop at most, because what a request costs is known only afterwards.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

MIN_WAIT = 0.001  # seconds; uvloop calls what is due in less than half a millisecond again and again


class Line(NamedTuple):
    """The name of a queue: a network has one for new connections and one for others, and two for penalised ones."""

    network: str
    is_new: bool
    is_penalized: bool


class Waiter(Protocol):
    """A connection whose next request waits."""

    @property
    def line(self) -> Line:
        """Return the line that it belongs in; this may change while it waits."""

    @property
    def line_wait(self) -> float:
        """Return the seconds until the first of that line may begin; 0 if it may begin now."""

    def admit(self) -> None:
        """Begin the request; called once for each time that it joined a line."""


class NetworkLines:
    """Lets requests of a network begin as fast as its share of the loop allows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[Line, OrderedDict[Waiter, None]] = {}  # for each of them, one call of `_admit` is scheduled
        self._places: dict[Waiter, Line] = {}  # the line that each waiter is in

    def must_wait(self, waiter: Waiter) -> bool:
        """Put *waiter*, a new connection, in line if it has to wait; return whether it does."""
        name = waiter.line
        if name in self._lines or waiter.line_wait:
            self.join(waiter)
            return True
        self._open(name, 0.0)
        return False

    def join(self, waiter: Waiter, *, first: bool = False) -> None:
        """Put *waiter* at the end of its line, or at the front if *first*; `admit` is called when its turn comes."""
        if waiter in self._places:
            return
        name = self._places[waiter] = waiter.line
        if (line := self._lines.get(name)) is None:
            line = self._open(name, waiter.line_wait)
        line[waiter] = None
        line.move_to_end(waiter, last=not first)

    def leave(self, waiter: Waiter) -> None:
        """Take *waiter*, which has ended or begins, out of its line."""
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
        """Admit the first in line if its network may use the loop now; close the line once it is empty."""
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
