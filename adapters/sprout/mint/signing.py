"""Signs nodes on all cores, and returns them in order: parents before children.

Signing releases the interpreter's lock, so there is a thread for each core. A signature takes half a millisecond, and
handing a node from thread to thread a tenth of that; so the nodes that wait for a free thread form a batch, which it
signs in sequence. A node that refers to one that is not signed yet is signed in the worker's thread, after all nodes
before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Final, NamedTuple, NoReturn

from adapters.sprout.forest.forest import node_id
from adapters.sprout.wire.codec import NodeLine, node_line
from gateway.adapter import Services
from gateway.core.errors import RequestError
from gateway.core.message import PendingForm

MAX_BATCH: Final = 32  # nodes that a thread signs before it returns any of them, some 15 ms


class PendingNode:
    """A node of the gateway that may not be signed yet: `id` is set before `line`, its line, is filled."""

    __slots__ = ("id", "line")

    def __init__(self, id: str = "") -> None:
        self.id = id
        self.line = PendingForm()


class SigningJob(NamedTuple):
    """A function that signs a node, and whether it is *ready*: all nodes that it refers to are signed."""

    sign: Callable[[], bytes]
    ready: bool = False


class SigningPool:
    """A pool of threads that sign nodes."""

    def __init__(self, services: Services) -> None:
        self._work = services.work
        self._pool = ThreadPoolExecutor(os.cpu_count(), "signer")
        self._open_batch: _TaskBatch | None = None  # more may go with these

    def submit(self, made: PendingNode, signing: SigningJob, record: Callable[[NodeLine], object]) -> None:
        """Sign a node, call *record* on the loop, then fill the line; fill it with None if either fails.

        The last results may arrive after the gateway has stopped, when *record* fails.
        """
        order = _Task(made, signing.sign, record)
        if not signing.ready:
            self._open_batch = None
            self._work(order.line, order.done)
        elif self._open_batch is None or not self._open_batch.add(order):
            self._open_batch = _TaskBatch(order)
            self._work(self._pool.submit(self._open_batch.sign).result, self._done)

    def _done(self, signed: list[tuple[_Task, NodeLine | Exception]] | None) -> None:
        for order, line in signed or ():
            if isinstance(line, Exception):
                self._work(partial(_fail, line), order.done)  # which logs and counts the failure
            else:
                order.done(line)


class _Task(NamedTuple):
    """A node to be signed."""

    made: PendingNode
    sign: Callable[[], bytes]
    record: Callable[[NodeLine], object]

    def line(self) -> NodeLine:
        raw = self.sign()
        line = node_line(node_id(raw), raw)
        self.made.id = line.id  # the next task of the worker may need it
        return line

    def done(self, line: NodeLine | None) -> None:
        try:
            shown = line is not None and self.record(line) is not False
        except RequestError:
            shown = False
        self.made.line.fill(line.line if line is not None and shown else None)


class _TaskBatch:
    """Nodes that one thread signs; more can be added until it begins."""

    def __init__(self, first: _Task) -> None:
        self._orders = [first]
        self._begun = False
        self._lock = Lock()

    def add(self, order: _Task) -> bool:
        """Add a task; return False if the thread has begun or the batch is full."""
        with self._lock:
            if self._begun or len(self._orders) >= MAX_BATCH:
                return False
            self._orders.append(order)
            return True

    def sign(self) -> list[tuple[_Task, NodeLine | Exception]]:
        """Sign all of them; each result is the line, or the error that was raised."""
        with self._lock:
            self._begun = True
        return [(order, _line_or_error(order)) for order in self._orders]


def _line_or_error(order: _Task) -> NodeLine | Exception:
    try:
        return order.line()
    except Exception as error:
        return error


def _fail(error: Exception) -> NoReturn:
    raise error
