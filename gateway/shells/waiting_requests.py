"""Queues of HTTP requests that wait while their network has used up its share of the loop.

The requests in a queue begin one after another, the oldest first. If all of them began as soon as the debt is paid,
together they would hold up the loop, and a network could have any number of requests for one wait. If each checked the
debt by itself, checking would cost more than answering. A queue admits one request in each iteration of the loop at
most, because what a request costs is known only afterwards.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

MIN_WAIT = 0.001  # seconds; uvloop calls what is due in less than half a millisecond again and again


class QueueName(NamedTuple):
    """The name of a queue: a network has one for new connections and one for others, and two for penalised ones."""

    network: str
    is_new: bool
    is_penalized: bool


class Waiter(Protocol):
    """A connection whose next request waits."""

    @property
    def queue_name(self) -> QueueName:
        """Return the queue that it belongs in; this may change while it waits."""

    @property
    def queue_wait(self) -> float:
        """Return the seconds until the first of that queue may begin; 0 if it may begin now."""

    def admit(self) -> None:
        """Begin the request; called once for each time that it joined a queue."""


class NetworkQueues:
    """Lets requests of a network begin as fast as its share of the loop allows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[QueueName, OrderedDict[Waiter, None]] = {}  # a call of `_admit` is scheduled for each
        self._places: dict[Waiter, QueueName] = {}  # the queue that each waiter is in

    def must_wait(self, waiter: Waiter) -> bool:
        """Put *waiter*, a new connection, in the queue if it has to wait; return whether it does."""
        name = waiter.queue_name
        if name in self._queues or waiter.queue_wait:
            self.join(waiter)
            return True
        self._open(name, 0.0)
        return False

    def join(self, waiter: Waiter, *, first: bool = False) -> None:
        """Put *waiter* at the end of its queue, or at the front if *first*; `admit` is called when its turn comes."""
        if waiter in self._places:
            return
        name = self._places[waiter] = waiter.queue_name
        if (queue := self._queues.get(name)) is None:
            queue = self._open(name, waiter.queue_wait)
        queue[waiter] = None
        queue.move_to_end(waiter, last=not first)

    def leave(self, waiter: Waiter) -> None:
        """Take *waiter*, which has ended or begins, out of its queue."""
        if (name := self._places.pop(waiter, None)) is not None:
            del self._queues[name][waiter]

    def _open(self, name: QueueName, wait: float) -> OrderedDict[Waiter, None]:
        queue = self._queues[name] = OrderedDict()
        self._admit_after(wait, name)
        return queue

    def _admit_after(self, wait: float, name: QueueName) -> None:
        if wait:
            self._loop.call_later(max(wait, MIN_WAIT), self._admit, name)
        else:
            self._loop.call_soon(self._admit, name)

    def _admit(self, name: QueueName) -> None:
        """Admit the first in the queue if its network may use the loop now; close the queue once it is empty."""
        queue = self._queues[name]
        if not queue:
            del self._queues[name]
            return
        first = next(iter(queue))
        is_elsewhere = first.queue_name != name  # it was penalised meanwhile, or no longer is
        wait = 0.0 if is_elsewhere else first.queue_wait
        self._admit_after(wait, name)  # before the first begins, so that an error there does not stop it
        if is_elsewhere:
            self.leave(first)
            self.join(first)
        elif not wait:
            self.leave(first)
            first.admit()


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, NetworkQueues] = WeakKeyDictionary()


def network_queues_of(loop: asyncio.AbstractEventLoop) -> NetworkQueues:
    """Return the queues of *loop*."""
    return _queues.get(loop) or _queues.setdefault(loop, NetworkQueues(loop))
