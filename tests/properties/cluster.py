"""Gateways that take one input in one order: a stream in memory, and houses that submit to it.

A house acts only when it has taken all that the stream has, so what it submits is taken by itself at once. The other
houses take it later, whenever they are told to.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.cluster.batch import Batch, Submission, decode_batch, encode_batch
from gateway.cluster.fences import Fences
from gateway.core.bus import Bus
from gateway.core.member import Member
from gateway.core.message import Message
from gateway.foreign import ForeignEntries
from gateway.storage.layout import first_seqs, paths
from gateway.storage.log import Log
from gateway.storage.record import Fact
from gateway.storage.segments import Segments
from tests.properties.house import House
from tests.still import Clock


class Entry(NamedTuple):
    """A batch in the stream, as bytes, which no gateway shares, and the time (ms) that its records get."""

    data: bytes
    time: int


class Stream:
    """The batches in their order, dated by *clock*. The log of each gateway begins with the records before *first*."""

    def __init__(self, first: int, clock: Clock) -> None:
        self.first = first
        self.entries: list[Entry] = []
        self.starts: Counter[str] = Counter()  # of gateways, by name
        self._clock = clock
        self._time = 0

    def append(self, data: bytes) -> int:
        """Append a batch; return its time."""
        self._time = max(self._time, self._clock())
        self.entries.append(Entry(data, self._time))
        return self._time

    def records(self) -> int:
        """How many records a log has in the end."""
        fences = Fences()
        batches = [batch for batch in (decode_batch(entry.data) for entry in self.entries) if fences.admit(batch)]
        return self.first - 1 + sum(_size(each) for batch in batches for each in batch.submissions)


class StreamSequencer:
    """The sequencer of the gateway *name* on a *stream*. Each submission is a batch."""

    def __init__(self, name: str, stream: Stream, bus: Bus, log: Log) -> None:
        stream.starts[name] += 1
        self.stream = stream
        self._bus = bus
        self._log = log
        self._name, self._epoch, self._sent = name, stream.starts[name], 0
        self.position = 0
        self._fences = Fences()
        seq = stream.first
        while seq < log.next_seq:  # what is in the log already
            seq += sum(map(_size, self._next()))
        assert seq == log.next_seq, "a log ends within a batch"

    @property
    def lag(self) -> int:
        """The batches that are not taken yet."""
        return len(self.stream.entries) - self.position

    def submit(self, run: Sequence[Message], origins: Sequence[Member | None]) -> None:
        """Submit a run, and take it."""
        self._bus.take(run, origins, self._append(run))

    def submit_fact(self, kind: str, fields: dict[str, Any]) -> Fact:
        """Submit a fact, and log it."""
        fact = Fact(kind, fields)
        fact.time = self._append(fact)
        fact.seq = self._log.next_seq
        self._log.append(fact)
        return fact

    def take(self, foreign: ForeignEntries) -> None:
        """Take the next batch, which another gateway submitted, or which does not count."""
        time = self.stream.entries[self.position].time
        for submission in self._next():
            if isinstance(submission, Fact):
                foreign.take_fact(submission.kind, submission.fields, time)
            else:
                foreign.take_run(submission, time)

    def _next(self) -> Sequence[Submission]:
        """What the next batch submits; nothing if it does not count."""
        batch = decode_batch(self.stream.entries[self.position].data)
        self.position += 1
        return batch.submissions if self._fences.admit(batch) else ()

    def _append(self, submission: Submission) -> int:
        assert not self.lag, "a gateway acts only when it has taken everything"
        self._sent += 1
        time = self.stream.append(encode_batch(Batch(self._name, self._epoch, self._sent, [submission])))
        assert self._next(), "a gateway's own batch counts"
        return time


def _size(submission: Submission) -> int:
    return 1 if isinstance(submission, Fact) else len(submission)


class Node:
    """One gateway of a cluster, in *data*; it begins with what its *peer* has."""

    def __init__(self, stream: Stream, data: Path, peer: Node | None = None) -> None:
        self.stream = stream
        self.data = data
        if peer is not None:
            self.copy_lines(peer)
        self.open()

    def open(self) -> None:
        """Start."""
        self.house = House(self.data, lambda bus, log: StreamSequencer(self.data.name, self.stream, bus, log))
        gateway = self.house.gateway
        assert isinstance(gateway.sequencer, StreamSequencer)
        self.sequencer = gateway.sequencer
        self.foreign = ForeignEntries(gateway.bus, gateway.log, gateway.adapters)

    def take(self, count: int) -> None:
        """Take at most *count* batches; without a limit all that there are."""
        for _ in range(min(count, self.sequencer.lag)):
            self.sequencer.take(self.foreign)

    def catch_up(self) -> None:
        """Take everything."""
        self.take(self.sequencer.lag)

    def restart(self, peer: Node) -> None:
        """Stop, and start again with the lines that only *peer* has by then."""
        self.catch_up()
        self.house.stop()
        self.copy_lines(peer)
        self.open()

    def copy_lines(self, peer: Node) -> None:
        """Copy the lines that a stopped gateway lacks from the log of *peer*, as a newcomer does."""
        peer.catch_up()
        peer.house.settle(synced=True)
        lines, theirs = self.lines(), peer.lines()
        if len(theirs) > len(lines):
            path = paths(self.data / "log", len(lines) + 1)[1]
            path.write_bytes(b"".join(theirs[len(lines) :]))

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
