"""Members that all want the turn are served in order, and no turn is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.cluster.batch import decode_batch
from gateway.cluster.turn_position import Position
from gateway.storage.record import Entry
from tests.gateway.cluster.turn_members import TurnMember, UnreliableNetwork


class BusyMember(TurnMember):
    """A gateway with clients, each of which asks again when it was answered.

    A request that waits for the turn is woken, and continues only later, as a task of the loop does.
    """

    waiting = 0  # requests

    def ask(self) -> None:
        """A client sends a request."""
        self.turn.requests += 1
        self.go_on()

    def go_on(self) -> None:
        if self.turn.acting:
            self.say()
            self.turn.finished()
        else:
            self.waiting += 1
            self.turn.want()

    def begin(self) -> None:
        super().begin()
        waiting, self.waiting = self.waiting, 0
        for _ in range(waiting):
            self.calls.append(self.go_on)

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        super().confirm(entries, lines)
        for _ in lines:
            self.calls.append(self.ask)


@pytest.mark.parametrize("clients", [(1, 1, 1), (8, 8, 8), (20, 1, 1)])
def test_no_turn_is_lost_and_no_member_starves(clients: tuple[int, ...]) -> None:
    """Each turn serves all that waited, and is handed over in the batch that has what they said."""
    world = UnreliableNetwork()
    busy = [BusyMember(world, name) for name in "abc"]
    world.members = [*busy]
    for member, count in zip(busy, clients, strict=True):
        for _ in range(count):
            member.ask()
    for _ in range(120):  # while no time passes: nothing waits for a tick, or for a quantum
        for each in busy:
            for _ in range(len(each.calls)):
                each.run()
            each.read_one()
    position = Position()
    claim, *turns = filter(position.admit, map(decode_batch, world.stream))
    assert not claim.lines
    assert all(batch.lines for batch in turns), "no turn is passed on unused, and no batch only passes it on"
    assert len(turns) > 30
    holders = [batch.member for batch in turns[3:]]
    assert all(len(set(holders[at : at + 3])) == 3 for at in range(len(holders) - 2)), "each in turn"
    for member, count in zip(busy, clients, strict=True):
        theirs = [len(batch.lines) for batch in turns[3:] if batch.member == member.turn.me]
        assert min(theirs) == count, "all that waited"
