"""Nodes signed together are returned in their order, and a failure affects no other node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.sprout.forest.forest import node_id
from adapters.sprout.mint import signing
from adapters.sprout.mint.signing import PendingNode, SigningJob, SigningPool
from adapters.sprout.wire.codec import NodeLine


class ManualWorker:
    """The worker's queue of a gateway, worked off when a test says so."""

    def __init__(self) -> None:
        self.queue: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.faults: list[str] = []
        self.signing = SigningPool(SimpleNamespace(work=lambda *task: self.queue.append(task)))  # type: ignore[arg-type]

    def work_off(self) -> None:
        while self.queue:
            call, done = self.queue.pop(0)
            try:
                result = call()
            except ValueError as error:
                self.faults.append(str(error))
                result = None
            done(result)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> ManualWorker:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    return ManualWorker()


def _number(number: int) -> bytes:
    return b"%d" % number


def fail() -> bytes:
    raise ValueError("no such key")


def test_waiting_nodes_are_signed_in_batches_and_in_order(desk: ManualWorker) -> None:
    begun, go = Event(), Event()

    def first() -> bytes:
        begun.set()
        go.wait()
        return b"0"

    recorded: list[bytes] = []
    made = [PendingNode() for _ in range(2 + signing.MAX_BATCH)]
    record: Callable[[NodeLine], object] = lambda line: recorded.append(line.raw)  # noqa: E731
    desk.signing.submit(made[0], SigningJob(first, True), record)
    begun.wait()
    for number, each in enumerate(made[1:], 1):
        desk.signing.submit(each, SigningJob(fail if number == 2 else partial(_number, number), True), record)
    assert len(desk.queue) == 3, "the first, as many as go together, and one more"
    go.set()
    desk.work_off()
    assert desk.faults == ["no such key"]
    assert made[2].line.done
    assert made[2].line.data is None
    assert all(each.line.data for each in made if each is not made[2])
    assert len(recorded) == len(made) - 1
    assert recorded == [each for _, each in sorted((made_at(made, raw), raw) for raw in recorded)]


def made_at(made: list[PendingNode], raw: bytes) -> int:
    """Which of *made* the node *raw* is."""
    (id,) = {node_id(raw)}
    return next(place for place, each in enumerate(made) if each.id == id)


def test_a_node_is_signed_after_those_it_refers_to(desk: ManualWorker) -> None:
    parent, child = PendingNode(), PendingNode()
    desk.signing.submit(parent, SigningJob(lambda: b"parent", True), lambda _: None)
    desk.signing.submit(child, SigningJob(lambda: b"below " + parent.id.encode(), bool(parent.id)), lambda _: None)
    desk.work_off()
    assert parent.id
    assert child.id == node_id(b"below " + parent.id.encode())
