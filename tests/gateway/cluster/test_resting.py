"""The holder of the turn accepts nothing once another member may have claimed it."""

from __future__ import annotations

from random import Random

import pytest

from gateway.cluster.accepting_turn import LEASE_SECONDS
from gateway.cluster.batch import Batch, encode_batch
from gateway.cluster.earliest_claim import REST_SHARE
from tests.gateway.cluster.turn_members import SEEDS, TurnMember, UnreliableNetwork, settle

TICK = 0.1  # seconds
UNSURE = REST_SHARE * LEASE_SECONDS + TICK


@pytest.fixture
def holder(world: UnreliableNetwork) -> TurnMember:
    """A member that has the turn."""
    one, other = world.members
    one.say()
    settle(world, one)
    one.say()
    settle(world, one)
    other.read_all()
    return one


def rest(holder: TurnMember) -> None:
    holder.world.now += UNSURE
    holder.turn.tick()
    assert (holder.turn.acting, holder.turn.is_mine, holder.held) == (False, True, "others accept")


def test_a_holder_that_was_cut_off_accepts_nothing_and_need_not_end(
    world: UnreliableNetwork, holder: TurnMember
) -> None:
    other = world.members[1]
    rest(holder)
    world.members = [other]  # the holder neither reads nor hears anything
    other.say()
    world.now += LEASE_SECONDS + TICK
    settle(world, other)
    assert other.turn.acting
    holder.say()
    other.say()
    settle(world, other)
    world.members = [holder, other]
    settle(world, holder)
    assert (holder.is_lost, holder.turn.acting) == (False, True)
    assert holder.log == other.log == world.lines()
    assert len(holder.log) == 2


def test_a_holder_that_rests_goes_on_with_one_batch(world: UnreliableNetwork, holder: TurnMember) -> None:
    rest(holder)
    batches = len(world.stream)
    holder.say()
    holder.read_all()
    assert (len(world.stream), holder.turn.acting, holder.held) == (batches + 1, True, None)


def test_a_holder_that_rests_passes_the_turn_on_at_once(world: UnreliableNetwork, holder: TurnMember) -> None:
    other = world.members[1]
    rest(holder)
    holder.turn.wanted(other.turn.me)
    other.read_all()
    assert other.turn.acting


def test_a_holder_that_rests_leaves_in_order(world: UnreliableNetwork, holder: TurnMember) -> None:
    other = world.members[1]
    rest(holder)
    holder.turn.leave()
    holder.read_all()
    assert holder.turn.leave()
    other.read_all()
    other.say()
    other.read_all()
    assert other.turn.acting, "without waiting for the lease"


def test_a_holder_whose_batch_is_late_rests_until_it_comes(world: UnreliableNetwork, holder: TurnMember) -> None:
    holder.say()
    holder.run()
    late = world.stream.pop()
    world.now += UNSURE
    holder.turn.tick()
    assert not holder.turn.acting
    world.stream.append(late)
    holder.read_all()
    assert (holder.turn.acting, holder.held, len(holder.log)) == (True, None, 2)


def test_a_holder_that_is_heard_does_not_rest(world: UnreliableNetwork, holder: TurnMember) -> None:
    for _ in range(10):
        world.now += UNSURE / 2
        holder.say()
        settle(world, holder)
        assert holder.turn.acting


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_members_accept_at_once(seed: int) -> None:
    """Members that are cut off for any time, or read late, and have their ticks, never accept beside another one."""
    chance, world = Random(seed), UnreliableNetwork()
    world.members = [TurnMember(world, name) for name in "abc"]
    cut_until = dict.fromkeys(world.members, 0.0)
    for _ in range(600):
        world.now += TICK / 2
        for member in world.members:
            if chance.random() < 0.004:
                cut_until[member] = world.now + chance.uniform(0, 3 * LEASE_SECONDS)
            member.turn.tick()
            if chance.random() < 0.3:
                member.say()
            if cut_until[member] <= world.now:
                for _ in range(chance.choice((1, 1_000))):
                    member.run()
                    member.read_one()
            acting = [each.name for each in world.members if each.turn.acting and not each.turn.over]
            assert len(acting) <= 1, f"{acting} at {world.now:.2f}"


def test_a_holder_whose_batch_comes_too_late_asks_before_it_accepts(
    world: UnreliableNetwork, holder: TurnMember
) -> None:
    """The claim of another member may stand behind that batch."""
    other = world.members[1]
    holder.say()
    holder.run()
    other.read_all()
    world.now += UNSURE
    holder.turn.tick()
    other.say()
    world.now += LEASE_SECONDS + TICK
    other.turn.tick()
    other.read_all()
    assert other.turn.acting
    holder.read_one()
    assert not holder.turn.acting
    holder.say()
    holder.read_all()
    assert not holder.is_lost


def test_what_was_gathered_is_accepted_before_a_holder_rests(world: UnreliableNetwork, holder: TurnMember) -> None:
    acting: list[bool] = []
    holder.hold = lambda _why: acting.append(holder.turn.acting)  # type: ignore[method-assign, assignment]
    world.now += UNSURE
    holder.turn.tick()
    assert acting[0], "`Membership.hold` publishes it"


def test_a_stray_batch_does_not_end_a_holder_that_rests(world: UnreliableNetwork, holder: TurnMember) -> None:
    world.members = [holder]
    number, seq = holder.turn.position.number + 5, holder.next_seq
    world.stream.append(encode_batch(Batch("x@9", number, "x@9", seq, [])))
    holder.read_all()
    for _ in range(int(2 * LEASE_SECONDS / TICK)):
        world.now += TICK
        holder.turn.want()
        settle(world, holder)
    assert not holder.is_damaged


def test_a_member_that_reads_late_that_it_got_the_turn_asks_before_it_accepts(
    world: UnreliableNetwork, holder: TurnMember
) -> None:
    """The claim of another member may stand behind the batch that gave it the turn."""
    other = world.members[1]
    other.say()
    holder.run()
    holder.read_all()
    world.now += LEASE_SECONDS + TICK
    holder.say()
    holder.turn.tick()
    world.now += LEASE_SECONDS + TICK
    holder.turn.tick()
    holder.read_all()
    assert holder.turn.acting, "it claimed the turn, which nobody used"
    other.read_one()
    assert not other.turn.acting
    other.read_all()
    settle(world, other)
    assert (other.turn.acting, other.is_lost, holder.is_lost) == (True, False, False)


def test_a_member_that_gets_the_turn_it_asked_for_accepts_at_once(world: UnreliableNetwork, holder: TurnMember) -> None:
    world.now += 100 * LEASE_SECONDS
    holder.turn.tick()
    other = world.members[1]
    other.say()
    holder.run()
    batches = len(world.stream)
    other.read_all()
    assert (other.turn.acting, len(world.stream)) == (True, batches)


def test_a_holder_that_rests_and_passes_the_turn_on_says_at_once_that_it_wants_it(
    world: UnreliableNetwork, holder: TurnMember
) -> None:
    other = world.members[1]
    rest(holder)
    holder.turn.want()  # which claims the turn
    holder.turn.wanted(other.turn.me)
    wishes: list[str] = []
    holder.want = lambda member, _batches: wishes.append(member)  # type: ignore[method-assign, assignment]
    holder.read_all()
    assert (holder.turn.position.holder, wishes) == (other.turn.me, [holder.turn.me])
