"""The line of new connections of each network, which wait while it has used up its share of the loop.

Each later request of a connection has a turn (`gateway.shells.turns`), but the first may be the handshake of a
WebSocket, which has none. Those that wait begin one after another, the oldest first. If all began as soon as the debt
is paid, they would hold up the loop together, and a network could have any number of handshakes for one wait. For the
same reason no more than one begins in each iteration of the loop: what it costs is known only afterwards.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol
from weakref import WeakKeyDictionary


class NewConnection(Protocol):
    """A connection whose first request was not parsed yet."""

    network: str

    @property
    def network_wait(self) -> float:
        """Return the seconds until its network may have more of the loop."""

    def take_first_turn(self) -> None:
        """Parse what arrived."""


class FirstRequests:
    """Lets new connections of a network begin as fast as its share of the loop allows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[str, OrderedDict[NewConnection, None]] = {}  # by network; a call of `_admit` for each

    def must_wait(self, connection: NewConnection) -> bool:
        """Whether *connection* has to wait; if so, it is in line from now on."""
        line = self._lines.get(connection.network)
        if line is None:
            line = self._lines[connection.network] = OrderedDict()
            if not (wait := connection.network_wait):
                self._loop.call_soon(self._admit, connection.network)
                return False
            self._loop.call_later(wait, self._admit, connection.network)
        line[connection] = None
        return True

    def leave(self, connection: NewConnection) -> None:
        """Forget *connection*, which has ended."""
        if (line := self._lines.get(connection.network)) is not None:
            line.pop(connection, None)

    def _admit(self, network: str) -> None:
        """Let the first in line begin if its network may have more of the loop now."""
        line = self._lines[network]
        if not line:
            del self._lines[network]
            return
        first = next(iter(line))
        if wait := first.network_wait:
            self._loop.call_later(wait, self._admit, network)
            return
        del line[first]
        self._loop.call_soon(self._admit, network)  # first, so that an error below does not stop it
        first.take_first_turn()


_first_requests: WeakKeyDictionary[asyncio.AbstractEventLoop, FirstRequests] = WeakKeyDictionary()


def first_requests_of(loop: asyncio.AbstractEventLoop) -> FirstRequests:
    """Return the lines of *loop*."""
    return _first_requests.get(loop) or _first_requests.setdefault(loop, FirstRequests(loop))
