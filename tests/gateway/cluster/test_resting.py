"""The holder of the turn accepts nothing once another member may have claimed it."""

from __future__ import annotations

from random import Random

import pytest

from gateway.cluster.accepting_turn import LEASE_SECONDS, REST_SHARE
from gateway.cluster.batch import Batch, encode_batch
from gateway.cluster.removal import encode_removal
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


class JealousMember(TurnMember):
    """Says something as soon as it may, and nobody else may then."""

    def begin(self) -> None:
        others = [each.name for each in self.world.members if each is not self and each.turn.acting]
        assert not others, f"{self.name} accepts beside {others} at {self.world.now:.2f}"
        super().begin()
        self.say()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_members_accept_at_once(seed: int) -> None:
    """Members that are cut off for any time, and have their ticks, do not accept beside the one that claimed."""
    chance, world = Random(seed), UnreliableNetwork()
    world.members = [JealousMember(world, name) for name in "abc"]
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
                while member.calls:
                    member.run()
                member.read_all()
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


def test_a_holder_that_rests_tells_nobody_that_it_wants_its_own_turn(
    world: UnreliableNetwork, holder: TurnMember
) -> None:
    """It would get it back unasked after it passed it on."""
    other = world.members[1]
    rest(holder)
    holder.turn.want()
    holder.turn.tick()
    assert not other.calls


# A member that reads late that it got the turn


@pytest.fixture
def late(world: UnreliableNetwork, holder: TurnMember) -> TurnMember:
    """A member that has not read yet that it got the turn, and a third one that waits."""
    late = world.members[1]
    world.members.append(TurnMember(world, "third"))
    late.say()
    holder.run()
    return late


def test_a_member_accepts_only_when_it_has_read_what_it_received(world: UnreliableNetwork, late: TurnMember) -> None:
    third = world.members[2]
    third.read_all()
    world.now += LEASE_SECONDS + TICK
    third.say()
    world.now += LEASE_SECONDS + TICK
    third.turn.tick()
    third.read_all()
    assert third.turn.acting, "it claimed the turn"
    begun: list[bool] = []
    late.begin = lambda: begun.append(True)  # type: ignore[method-assign]
    late.read_all()
    assert (begun, late.turn.acting, late.is_lost) == ([], False, False)
    third.calls.clear()
    late.turn.tick()
    assert third.calls, "it goes on to say that it wants the turn"


@pytest.mark.parametrize("last", [b"noise", encode_removal("elsewhere")])
def test_a_member_accepts_once_it_has_read_the_rest(world: UnreliableNetwork, late: TurnMember, last: bytes) -> None:
    world.stream += [last, last]
    elements, begun = len(world.stream), list[int]()
    late.begin = lambda: begun.append(late.read)  # type: ignore[method-assign]
    late.read_one(has_more=True)
    late.turn._wanting = None  # as if it was given the turn unasked
    late.turn.want()
    late.turn.tick()
    late.turn.wanted(world.members[2].turn.me)
    late.read_one(has_more=True)
    assert (late.turn.is_mine, len(world.stream)) == (True, elements), "it neither claims it nor passes it on unused"
    late.read_one()
    assert begun == [elements]


def test_a_member_that_leaves_before_it_has_read_the_rest_does_not_accept(
    world: UnreliableNetwork, late: TurnMember
) -> None:
    begun: list[bool] = []
    late.begin = lambda: begun.append(True)  # type: ignore[method-assign]
    world.stream.append(b"noise")
    late.read_one(has_more=True)
    late.turn.leave()
    late.read_one()
    late.read_all()
    assert (begun, late.turn.leave()) == ([], True)
