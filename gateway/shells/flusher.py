"""One flush for all connections of a loop: what many messages bring leaves in one write for each connection."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.core.watchdog import Progress

MAX_TURNS = 64  # of the loop that a flush waits while more is coming in
MAX_WAIT = 0.005  # seconds that it waits for that: a turn may take long, and somebody else's input brings it on
SAMPLE = 4  # connections that tell whether several messages are waiting

logger = logging.getLogger(__name__)


class Flushable(Protocol):
    """A connection that writes what its session has when it is flushed."""

    transport: asyncio.Transport

    @property
    def waiting(self) -> int:
        """How many frames are to be written."""

    def flush(self) -> None:
        """Write them."""


class Flusher:
    """Flushes all connections that were woken, by one callback: at the end of the loop's turn, or a few turns later.

    While messages come so fast that several are waiting for the same peer, the flush waits as long as each turn of
    the loop still brings something in, at most `MAX_TURNS` and `MAX_WAIT`: then more messages leave in one write, which
    is what most of the time goes into. As soon as that gathers nothing, flushes are immediate again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.arrivals = 0  # reads that brought something
        self._loop = loop
        self._woken: dict[Flushable, None] = {}
        self._crowded = False
        self._turns = 0  # that the next flush may still wait
        self._seen_arrivals = 0  # arrivals when it was put off
        self._deadline = 0.0  # (`perf_counter`) which it is put off at most
        self._flushes = 0

    @property
    def progress(self) -> Progress:
        """What waits, and what was done."""
        return Progress(len(self._woken), self._flushes)

    def add(self, connection: Flushable) -> None:
        """Flush *connection* soon, once."""
        if not self._woken:
            self._turns = MAX_TURNS if self._crowded else 0
            self._seen_arrivals = self.arrivals - 1
            self._deadline = perf_counter() + MAX_WAIT if self._crowded else 0.0
            self._loop.call_soon(self._flush)
        self._woken[connection] = None

    def _flush(self) -> None:
        if self._turns and self._seen_arrivals != self.arrivals and perf_counter() < self._deadline:
            self._turns -= 1
            self._seen_arrivals = self.arrivals
            self._loop.call_soon(self._flush)
            return
        self._flushes += 1
        woken, self._woken = self._woken, {}  # first: looking at a connection may wake others, which come next
        self._crowded = False
        for place, connection in enumerate(woken):
            try:
                if place < SAMPLE and connection.waiting > 1:
                    self._crowded = True
                connection.flush()
            except Exception:  # a bug in one session must not stop the others
                logger.exception("a connection failed; the others go on")
                connection.transport.abort()


_flushers: WeakKeyDictionary[asyncio.AbstractEventLoop, Flusher] = WeakKeyDictionary()


def flusher_of(loop: asyncio.AbstractEventLoop) -> Flusher:
    """The flusher of *loop*."""
    return _flushers.get(loop) or _flushers.setdefault(loop, Flusher(loop))
