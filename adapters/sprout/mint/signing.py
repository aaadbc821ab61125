"""Signatures, made on all cores and brought home in order: parents before children.

Who signs releases the interpreter's lock, so a thread for each core does. A signature takes half a millisecond, and
handing a node from thread to thread takes a tenth of that, so nodes that come faster go together: those that wait for
a free thread are signed by it one after another. What names a node that is still being made is signed in the worker's
thread, once everything before it is there.
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

MAX_BATCH: Final = 32  # nodes that one thread signs before any of them is handed out, some 15 ms


class PendingNode:
    """A node of the gateway's: `id` is there once `line`, its line, is."""

    __slots__ = ("id", "line")

    def __init__(self, id: str = "") -> None:
        self.id = id
        self.line = PendingForm()


class SigningJob(NamedTuple):
    """What signs a node, and whether it can at once: all nodes that it names are made."""

    sign: Callable[[], bytes]
    ready: bool = False


class SigningPool:
    """The threads that sign."""

    def __init__(self, services: Services) -> None:
        self._work = services.work
        self._pool = ThreadPoolExecutor(os.cpu_count(), "signer")
        self._open_batch: _TaskBatch | None = None  # more may go with these

    def submit(self, made: PendingNode, signing: SigningJob, record: Callable[[NodeLine], object]) -> None:
        """Sign, *record* on the loop, then hand out the line; nothing where either fails.

        The last results may come when the gateway has stopped and nothing can be recorded any more.
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
                self._work(partial(_fail, line), order.done)  # who counts what fails does so there
            else:
                order.done(line)


class _Task(NamedTuple):
    """A node that is to be made."""

    made: PendingNode
    sign: Callable[[], bytes]
    record: Callable[[NodeLine], object]

    def line(self) -> NodeLine:
        raw = self.sign()
        line = node_line(node_id(raw), raw)
        self.made.id = line.id  # the worker's next task may need it
        return line

    def done(self, line: NodeLine | None) -> None:
        try:
            shown = line is not None and self.record(line) is not False
        except RequestError:
            shown = False
        self.made.line.fill(line.line if line is not None and shown else None)


class _TaskBatch:
    """Nodes that one thread signs; more may be added until it begins."""

    def __init__(self, first: _Task) -> None:
        self._orders = [first]
        self._begun = False
        self._lock = Lock()

    def add(self, order: _Task) -> bool:
        """Take one more; False where that is too late, or too much."""
        with self._lock:
            if self._begun or len(self._orders) >= MAX_BATCH:
                return False
            self._orders.append(order)
            return True

    def sign(self) -> list[tuple[_Task, NodeLine | Exception]]:
        """All of them, or why one of them cannot be."""
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
