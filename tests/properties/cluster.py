"""Gateways of one cluster without threads or a network: they read a stream in memory when they are told.

A gateway acts when it has the turn, for which the others have to let go of it.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gateway.cluster.accepting_turn import Turn
from gateway.cluster.batch import decode_batch
from gateway.cluster.turn_position import Position
from gateway.jetstream.status import JetStreamStatus, StoredStream
from gateway.membership.membership import Membership
from gateway.membership.transport import Call
from gateway.storage.layout import first_seqs, paths
from gateway.storage.segments import Segments
from tests.properties.in_process_gateway import InProcessGateway


class Stream:
    """The batches in their order, as bytes. The log of each gateway begins with the records before *first*."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.entries: list[bytes] = []
        self.nodes: list[ClusterInstance] = []

    def records(self) -> int:
        """How many records a log has in the end."""
        position = Position()
        batches = map(decode_batch, self.entries)
        return self.first - 1 + sum(len(batch.lines) for batch in batches if position.admit(batch))


class MemoryTransport:
    """A connection to a *stream*; `pump` does what is due."""

    def __init__(self, stream: Stream) -> None:
        self.on_call: Callable[[], None] = lambda: None
        self.on_signal: Callable[[bytes], None] = lambda _data: None
        self.stream = stream
        self.place = 0  # batches that were taken
        self.time = (0, 0.0)
        self.digest: int | None = None
        self.is_full: Callable[[], bool] = lambda: False
        self.lost = self.refused = 0
        self.seconds = 0.0  # that have passed
        self.post: Callable[[Callable[[], None]], None] = lambda _call: None
        self._calls = deque[Callable[[], None]]()

    def open(self, turn: Turn, place: int) -> None:
        self.turn, self.place = turn, place

    @property
    def caught_up(self) -> bool:
        return self.place == len(self.stream.entries)

    def receive(self, seconds: float) -> Call | None:
        """The next call; while there is none the other gateways go on, who may have the turn."""
        if self._calls:
            return self._calls.popleft()
        if not self.caught_up:
            return self.take
        if seconds:
            for node in self.stream.nodes:
                if node.transport is not self:
                    node.transport.pump()
        return None

    def status(self) -> JetStreamStatus:
        """It is connected."""
        stored = StoredStream(1, len(self.stream.entries), 0, ())
        return JetStreamStatus(connected=True, position=self.place, unsent=0, error="", stored=stored)

    def close(self) -> None:
        """Nothing has to be ended."""

    def publish(self, data: bytes) -> None:
        self.stream.entries.append(data)
        self.post(self.pump)

    def want(self, member: str, batches: int) -> None:
        for node in self.stream.nodes:
            node.turn.wanted(member, batches)

    def tell(self, data: bytes, to: str = "") -> None:
        for node in self.stream.nodes:
            if to in ("", node.turn.me):
                node.transport.on_signal(data)

    def answers(self) -> bool:
        return True

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        def run() -> None:
            self.seconds += seconds
            call()

        self._calls.append(run)
        self.post(self.pump)

    def take(self) -> None:
        """Take the next batch."""
        self.place += 1
        self.turn.arrived(self.stream.entries[self.place - 1])

    def pump(self) -> None:
        """Do everything that is due, and take all that there is."""
        while (call := self.receive(0)) is not None:
            call()


class ClusterInstance:
    """One gateway of a cluster, in *data*."""

    def __init__(self, stream: Stream, data: Path) -> None:
        self.stream = stream
        self.data = data
        self.open()
        stream.nodes.append(self)

    def open(self) -> None:
        """Start."""
        self.transport = MemoryTransport(self.stream)
        self.membership = Membership(self.data.name, self.transport, lambda: self.transport.seconds)
        self.turn = self.membership.turn
        self.instance = InProcessGateway(self.data, self.membership)
        self.transport.post = self.instance.posted.put

    def take(self, count: int) -> None:
        """Take at most *count* batches."""
        for _ in range(min(count, len(self.stream.entries) - self.transport.place)):
            self.transport.take()

    def catch_up(self) -> None:
        """Take everything, and get the turn."""
        for _ in range(100):
            self.transport.pump()
            if self.turn.acting:
                return
            self.turn.want()
            self.turn.tick()  # says so again: another gateway may have started since the turn was used here
            for node in self.stream.nodes:
                node.transport.pump()
        raise AssertionError("the turn is not passed on")

    def restart(self) -> None:
        """Stop, and start again."""
        self.stop()
        self.open()

    def stop(self) -> None:
        """Stop."""
        self.catch_up()
        self.instance.stop()

    def lines(self) -> list[bytes]:
        """All lines of the log, of a gateway that is settled or stopped."""
        folder = self.data / "log"
        files = [next(filter(Path.exists, paths(folder, first))) for first in first_seqs(folder)]
        return [line for path in files for line in path.read_bytes().splitlines(keepends=True)]


def copy_of(folder: Path, to: Path) -> Path:
    """A copy of a gateway's directory: the same keys, the same log."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    return to


def next_seq(data: Path) -> int:
    """The sequence after the log in *data*."""
    segments = Segments(data / "log")
    segments.close()
    return segments.next_seq
