"""Members of a cluster that log facts in their turns, on a network that delays and repeats."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from gateway.cluster.accepting_turn import Turn
from gateway.storage.record import Entry, Fact, encode

SEEDS = range(2_000) if "TRELLIS_SOAK" in os.environ else range(60)


class UnreliableNetwork:
    """A stream, and a network that delays and repeats; *random* decides what happens next."""

    def __init__(self, random: Random | None = None) -> None:
        self.random = random
        self.stream: list[bytes] = []
        self.flying: list[bytes] = []  # published, and not in the stream yet
        self.members: list[TurnMember] = []
        self.now = 0.0
        self.confirmed: list[bytes] = []
        self.lives = 0
        self.is_out = False  # whether the servers do not answer

    def lines(self) -> list[bytes]:
        """What the log of every member has to be in the end."""
        toy = TurnMember(self, "reader")
        toy.read_all()
        return toy.log

    def publish(self, data: bytes) -> None:
        if self.random is None:
            self.stream.append(data)
        else:
            self.flying.append(data)

    def land(self) -> None:
        """Something that flies comes into the stream; perhaps it flies on."""
        if self.flying:
            assert self.random is not None
            data = self.random.choice(self.flying)
            self.stream.append(data)
            if self.random.random() < 0.8:
                self.flying.remove(data)


class TurnMember:
    """A gateway that logs facts when it may: the callbacks of its turn, and its transport."""

    def __init__(self, world: UnreliableNetwork, name: str) -> None:
        self.world, self.name = world, name
        world.lives += 1
        self.log: list[bytes] = []  # on its disk
        self.next_seq = 1
        self.read = 0
        self.calls = deque[Callable[[], None]]()
        self.held: str | None = "it starts"
        self.is_lost = self.is_removed = self.is_damaged = False
        self.turn = Turn(f"{name}@{world.lives}", self, self, lambda: world.now)

    # The callbacks

    def take(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        assert entries[0].seq == self.next_seq
        self.log += lines
        self.next_seq += len(lines)

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        assert entries[0].seq == len(self.log) + 1, "what is written follows what was written"
        self.log += lines
        self.world.confirmed += lines

    def begin(self) -> None:
        self.held = None

    def hold(self, why: str | None) -> None:
        self.held = why or "others accept"

    def turn_lost(self) -> None:
        self.is_lost = True

    def removed(self) -> None:
        self.is_removed = True

    def stream_damaged(self) -> None:
        self.is_damaged = True

    # The transport

    def publish(self, data: bytes) -> None:
        self.world.publish(data)

    def want(self, member: str, batches: int) -> None:
        random = self.world.random
        for each in self.world.members:
            if random is None or random.random() < 0.8:
                each.calls.append(lambda each=each: each.turn.wanted(member, batches))  # type: ignore[misc]

    def answers(self) -> bool:
        return not self.world.is_out

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        if not seconds:
            self.calls.append(call)  # `tick` looks at the time as well

    # What it does

    def say(self) -> None:
        """Log something, or ask to."""
        if self.held is None and self.turn.acting:
            fact = Fact("start", {"gateway": f"{self.turn.me} {self.next_seq}", "version": "1"}, self.next_seq, 0)
            self.next_seq += 1
            self.turn.logged((fact,), [encode(fact)])
        else:
            self.turn.want()

    def run(self) -> None:
        if self.calls:
            self.calls.popleft()()

    def read_one(self, *, has_more: bool = False) -> None:
        if self.read < len(self.world.stream):
            self.read += 1
            self.turn.arrived(self.world.stream[self.read - 1], has_more=has_more)

    def read_all(self) -> None:
        """Read what was received at once."""
        while self.read < len(self.world.stream):
            self.read_one(has_more=self.read + 1 < len(self.world.stream))


def settle(world: UnreliableNetwork, member: TurnMember) -> None:
    """Let everything that is due happen, in order."""
    for _ in range(50):
        for each in world.members:
            each.turn.tick()
            while each.calls:
                each.run()
            each.read_all()
        if member.turn.acting and not member.calls:
            return
