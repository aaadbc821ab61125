"""The lines of HTTP requests that wait while their network has used up its share of the loop.

Those that wait begin one after another, the oldest first. If all began as soon as the debt is paid, they would hold up
the loop together, and a network could have any number of requests for one wait; if each looked again by itself, looking
would cost more than answering. For the same reason no more than one new connection of a network begins in each
iteration of the loop: what its first request costs is known only afterwards.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol
from weakref import WeakKeyDictionary


class Waiter(Protocol):
    """A connection whose next request waits."""

    network: str

    @property
    def is_penalized(self) -> bool:
        """Whether it waits for its own misbehaviour as well, in a line of its own."""

    @property
    def network_wait(self) -> float:
        """Return the seconds until its network may have more of the loop."""

    def leave_line(self) -> None:
        """Parse or answer what has waited."""


Line = tuple[str, bool]  # the network, and whether its connections are penalised


class NetworkLines:
    """Lets requests of a network begin as fast as its share of the loop allows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[Line, OrderedDict[Waiter, None]] = {}  # for each, one call of `_admit` is on its way

    def must_wait(self, waiter: Waiter) -> bool:
        """Whether *waiter*, a new connection, has to wait; if so, it is in line from now on."""
        if (waiter.network, waiter.is_penalized) in self._lines or waiter.network_wait:
            self.join(waiter)
            return True
        self._open((waiter.network, waiter.is_penalized), 0.0)
        return False

    def join(self, waiter: Waiter) -> None:
        """Let *waiter* begin when those before it have, and its network may have more of the loop."""
        name = waiter.network, waiter.is_penalized
        if (line := self._lines.get(name)) is None:
            line = self._open(name, waiter.network_wait)
        line[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Forget *waiter*, which has ended."""
        for penalized in (False, True):  # it may have been penalised since
            if (line := self._lines.get((waiter.network, penalized))) is not None:
                line.pop(waiter, None)

    def _open(self, name: Line, wait: float) -> OrderedDict[Waiter, None]:
        line = self._lines[name] = OrderedDict()
        self._admit_after(wait, name)
        return line

    def _admit_after(self, wait: float, name: Line) -> None:
        if wait:
            self._loop.call_later(wait, self._admit, name)
        else:
            self._loop.call_soon(self._admit, name)

    def _admit(self, name: Line) -> None:
        """Let the first in line begin if its network may have more of the loop now."""
        line = self._lines[name]
        if not line:
            del self._lines[name]
            return
        first = next(iter(line))
        wait = first.network_wait
        self._admit_after(wait, name)  # before the first begins, so that an error there does not stop it
        if not wait:
            del line[first]
            first.leave_line()


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, NetworkLines] = WeakKeyDictionary()


def network_lines_of(loop: asyncio.AbstractEventLoop) -> NetworkLines:
    """Return the lines of *loop*."""
    return _lines.get(loop) or _lines.setdefault(loop, NetworkLines(loop))
