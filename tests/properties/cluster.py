"""Gateways that take one input in one order: a stream in memory, and houses that submit to it.

A house acts only when it has taken all that the stream has, so what it submits is taken by itself at once. The other
houses take it later, whenever they are told to.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.bus import Bus
from gateway.core.member import Member
from gateway.core.message import LATE_AFTER, Message
from gateway.foreign import ForeignEntries
from gateway.storage.layout import first_seqs, paths
from gateway.storage.log import Log
from gateway.storage.record import Fact, decode, encode
from gateway.storage.segments import Segments
from tests.properties.house import House
from tests.still import Clock

NO_ID = "-"  # stands for the id of a message that gets one when it is taken


class Batch(NamedTuple):
    """What was submitted at once: lines, as bytes that no gateway shares, and the time that they are logged at."""

    lines: list[bytes]
    time: int


class Stream:
    """The batches in their order. *first* is the sequence of the first record; *clock* gives the time of batches."""

    def __init__(self, first: int, clock: Clock) -> None:
        self.first = first
        self.batches: list[Batch] = []
        self._clock = clock
        self._time = 0

    def append(self, lines: list[bytes]) -> Batch:
        """Append a batch, and date it."""
        self._time = max(self._time, self._clock())
        self.batches.append(Batch(lines, self._time))
        return self.batches[-1]

    def position(self, seq: int) -> int:
        """The batch that begins with the record *seq*."""
        first, position = self.first, 0
        while first < seq:
            first += len(self.batches[position].lines)
            position += 1
        assert first == seq, "a log ends within a batch"
        return position


class StreamSequencer:
    """The sequencer of one gateway on a *stream*."""

    def __init__(self, stream: Stream, bus: Bus, log: Log) -> None:
        self.stream = stream
        self._bus = bus
        self._log = log
        self.position = stream.position(log.next_seq)

    @property
    def lag(self) -> int:
        """The batches that are not taken yet."""
        return len(self.stream.batches) - self.position

    def submit(self, run: Sequence[Message], origins: Sequence[Member | None]) -> None:
        """Submit a run, and take it."""
        self._bus.take(run, origins, self._append([_line(message) for message in run]))

    def submit_fact(self, kind: str, fields: dict[str, Any]) -> Fact:
        """Submit a fact, and log it."""
        time = self._append([encode(Fact(kind, fields, 1, 0))])
        fact = Fact(kind, fields, self._log.next_seq, time)
        self._log.append(fact)
        return fact

    def take(self, foreign: ForeignEntries) -> None:
        """Take the next batch, which another gateway submitted."""
        lines, time = self.stream.batches[self.position]
        self.position += 1
        entries = [decode(line) for line in lines]
        if isinstance(entries[0], Fact):
            foreign.take_fact(entries[0].kind, entries[0].fields, time)
        else:
            foreign.take_run([_fresh(entry, time) for entry in entries if isinstance(entry, Message)], time)

    def _append(self, lines: list[bytes]) -> int:
        assert not self.lag, "a gateway acts only when it has taken everything"
        self.position += 1
        return self.stream.append(lines).time


def _line(message: Message) -> bytes:
    """*message* as it was submitted: what it gets when it is taken is left out."""
    assert not message.refs
    id, message.id, message.seq = message.id, message.id or NO_ID, 1
    line = encode(message)
    message.id, message.seq = id, 0
    return line


def _fresh(message: Message, time: int) -> Message:
    """A message out of a batch, as it was before it was taken."""
    message.id = "" if message.id == NO_ID else message.id
    message.seq = message.time = 0
    message.late = 0 < message.timestamp < time - LATE_AFTER
    return message


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
        self.house = House(self.data, lambda bus, log: StreamSequencer(self.stream, bus, log))
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
