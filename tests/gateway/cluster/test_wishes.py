"""Members say once that they want the turn; what they say may be heard early or late."""

from __future__ import annotations

import pytest

from gateway.cluster.accepting_turn import QUANTUM_SECONDS
from gateway.cluster.batch import decode_batch
from tests.gateway.cluster.turn_members import TurnMember, UnreliableNetwork, settle


def test_a_member_that_just_passed_the_turn_on_can_request_it_at_once(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    one.turn.wanted(other.turn.me)
    assert not one.turn.acting
    one.say()  # while the batch that passes it on is on its way
    for member in (one, other):
        while member.calls:
            member.run()
    other.read_all()
    assert one.turn.me in other.turn._wishes._heard or not other.turn.acting, "it need not wait for a tick"


@pytest.mark.parametrize(("wish", "is_kept"), [(0, False), (1, True)])
def test_a_wish_may_be_heard_before_the_batch_that_gave_the_turn_before(
    world: UnreliableNetwork, wish: int, *, is_kept: bool
) -> None:
    """It is said once: one from after that turn counts, one from before has been granted."""
    one, other = world.members
    one.say()
    settle(world, one)
    assert (one.turn.position.number, one.turn.acting) == (1, True)
    late = TurnMember(world, "c")  # has read nothing yet
    late.turn.wanted(other.turn.me)
    late.turn.wanted(one.turn.me, wish)
    late.read_one()
    assert (one.turn.me in late.turn._wishes._heard) == is_kept
    assert late.turn._wishes.first(world.now) == other.turn.me, "whoever had the turn comes last"


def test_a_wish_counts_although_a_batch_of_the_turn_before_comes_later(world: UnreliableNetwork) -> None:
    """That batch does not begin a turn. Once the wish is granted, what is heard of it later does not count."""
    one, other = world.members
    one.say()
    settle(world, one)
    late = TurnMember(world, "c")
    late.read_all()
    one.say()
    while one.calls:
        one.run()
    assert decode_batch(world.stream[-1]).holder == one.turn.me
    one.turn.wanted(other.turn.me)
    world.now += QUANTUM_SECONDS
    one.turn.tick()
    assert not one.turn.acting
    one.say()  # wants the turn again, before its batch has come
    late.turn.wanted(one.turn.me, one.turn.position.number)
    late.read_all()
    assert one.turn.me in late.turn._wishes._heard
    settle(world, other)
    settle(world, one)
    late.read_all()
    assert late.turn.position.holder == one.turn.me
    late.turn.wanted(one.turn.me, 1)
    assert one.turn.me not in late.turn._wishes._heard
