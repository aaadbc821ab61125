"""Members of a cluster take turns under any behaviour of the network and the scheduler."""

from __future__ import annotations

from random import Random

import pytest

from gateway.cluster.accepting_turn import LEASE_SECONDS, MAX_AHEAD, QUANTUM_SECONDS, STALLED_SECONDS
from gateway.cluster.batch import Batch, decode_batch, encode_batch
from gateway.cluster.removal import decode_removal, encode_removal
from gateway.cluster.wishes import WISH_SECONDS
from gateway.storage.record import Fact, encode
from tests.gateway.cluster.turn_members import SEEDS, TurnMember, UnreliableNetwork, settle


def test_the_first_claims_and_the_next_is_given_the_turn(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    assert one.turn.acting
    assert one.held is None
    one.say()
    settle(world, one)
    other.say()
    settle(world, other)
    assert (one.turn.acting, other.turn.acting) == (False, True)
    assert one.held == "others accept"
    other.say()
    settle(world, other)
    one.read_all()
    assert one.log == other.log == world.lines()
    assert len(one.log) == 2


def test_a_busy_member_passes_the_turn_after_a_moment(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    one.say()
    one.turn.wanted(other.turn.me)
    assert one.turn.acting, "it is busy"
    world.now += QUANTUM_SECONDS
    one.turn.tick()
    assert not one.turn.acting
    settle(world, other)
    assert other.turn.acting
    assert len(other.log) == 1, "it has everything that was said before"


def test_an_unused_turn_is_claimed_after_the_lease(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    world.members = [other]  # the other one hears nothing any more
    other.read_all()
    other.say()
    world.now += LEASE_SECONDS
    settle(world, other)
    assert not other.turn.acting
    world.now += 0.1
    settle(world, other)
    assert other.turn.acting
    one.say()
    one.run()
    one.read_all()
    assert one.is_lost, "it said something in a turn that was over"
    assert other.log == world.lines() == []


def test_no_member_claims_the_turn_while_the_servers_do_not_answer(world: UnreliableNetwork) -> None:
    """The holder would have to end if the claim came into the stream before its batch."""
    one, other = world.members
    one.say()
    settle(world, one)
    other.read_all()
    world.is_out = True
    world.publish = lambda _data: None  # type: ignore[method-assign, assignment]
    one.say()
    one.run()
    other.turn.want()
    for _ in range(3):
        world.now += LEASE_SECONDS - 0.1
        one.turn.tick()
        other.turn.tick()
    assert other.turn.waited > LEASE_SECONDS
    assert other.turn._sent is None
    world.is_out = False
    world.now += LEASE_SECONDS - 0.1
    other.turn.tick()
    assert other.turn._sent is None, "the holder has as long as ever"


def test_an_idle_member_survives_the_loss_of_its_turn(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    world.members = [other]
    other.read_all()
    other.say()
    world.now += LEASE_SECONDS + 0.1
    settle(world, other)
    one.read_all()
    assert (one.is_lost, one.turn.acting, one.held) == (False, False, "others accept")


def test_a_batch_that_comes_twice_counts_once(world: UnreliableNetwork) -> None:
    one = world.members[0]
    one.say()
    settle(world, one)
    one.say()
    one.run()
    world.stream.append(world.stream[-1])
    one.read_all()
    assert one.log == world.lines()
    assert (len(one.log), one.turn.ignored) == (1, 1)


def test_publishers_are_refused_while_the_stream_does_not_answer(world: UnreliableNetwork) -> None:
    one = world.members[0]
    one.say()
    settle(world, one)
    one.say()
    one.run()
    lost = world.stream.pop()
    world.now += STALLED_SECONDS + 0.1
    one.turn.tick()
    assert one.held == "the cluster does not answer"
    assert one.turn.waited > STALLED_SECONDS
    world.stream.append(lost)
    one.read_all()
    assert one.held is None
    assert one.turn.waited == 0


def test_publishers_wait_again_once_the_stream_answers_after_a_handover(world: UnreliableNetwork) -> None:
    """It did not refuse them for long: a gateway wants the turn each second, and takes them when it gets it."""
    one, other = world.members
    one.say()
    settle(world, one)
    one.turn.wanted(other.turn.me)
    assert not one.turn.acting
    lost = world.stream.pop()
    world.now += STALLED_SECONDS + 0.1
    one.turn.tick()
    assert one.held == "the cluster does not answer"
    world.stream.append(lost)
    one.read_all()
    assert one.held == "others accept"


def test_unsent_lines_are_bounded_and_sent_in_batches(world: UnreliableNetwork) -> None:
    one = world.members[0]
    one.say()
    settle(world, one)
    long = encode(Fact("start", {"gateway": "x" * (3 << 20), "version": "1"}, 1, 0))
    lines = [long.replace(b'"seq":1,', b'"seq":%d,' % seq) for seq in range(1, 8)]
    facts = [Fact("start", {"gateway": "x" * (3 << 20), "version": "1"}, seq, 0) for seq in range(1, 8)]
    one.turn.logged(facts, [encode(fact) for fact in facts])
    assert sum(map(len, lines)) > MAX_AHEAD
    assert one.held == "others accept"
    settle(world, one)
    assert one.held is None
    assert len(one.log) == 7
    assert max(map(len, world.stream)) < 8 << 20


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_member_that_reads_a_stream_with_a_hole_does_not_accept(world: UnreliableNetwork, damage: str) -> None:
    """It would claim the turn by a batch that all others ignore, and go on alone."""
    one, other = world.members
    for _ in range(4):
        one.say()
        settle(world, one)
    other.read_all()
    reader = TurnMember(world, "c")
    hole = world.stream[1]
    world.stream[1:2] = [] if damage == "missing" else [hole.replace(b"start", b"stars")]
    reader.read_all()
    world.members = [reader]
    reader.turn.compare(other.turn.position.number)  # more has counted there
    reader.say()
    world.now += LEASE_SECONDS + 0.1
    settle(world, reader)
    assert (reader.is_damaged, reader.turn.acting) == (True, False)
    assert other.log == one.log != reader.log


def test_a_batch_out_of_turn_is_ignored(world: UnreliableNetwork) -> None:
    """Whoever may write to the stream may append one with any number; the next one that follows shows what it is."""
    one, other = world.members
    one.say()
    settle(world, one)
    world.stream.append(encode_batch(Batch("x@1", 99, "x@1", 1, [])))
    other.read_all()
    one.say()
    settle(world, one)
    other.read_all()
    other.say()
    world.now += LEASE_SECONDS + 0.1
    settle(world, other)
    assert [each.is_damaged for each in (one, other)] == [False, False]
    assert other.turn.acting
    assert other.log == world.lines()


@pytest.mark.parametrize(("ahead", "first"), [(97, 0), (1, 5)])
def test_a_batch_after_a_gap_ends_no_member_that_can_compare(world: UnreliableNetwork, ahead: int, first: int) -> None:
    """Nobody says anything after it; it could show that the reader lacks something."""
    one, other = world.members
    one.say()
    settle(world, one)
    number, end = one.turn.position.number, one.turn.position.next_seq
    world.stream.append(encode_batch(Batch("x@1", number + ahead, "x@1", end + first, [])))
    for each in world.members:
        each.read_all()
    assert other.turn.stray == decode_batch(world.stream[-1])
    other.turn.compare(one.turn.position.number)
    other.say()
    world.now += LEASE_SECONDS + 0.1
    settle(world, other)
    assert ([each.is_damaged for each in (one, other)], other.turn.acting) == ([False, False], True)


def test_a_batch_after_a_gap_ends_no_member_while_the_servers_are_silent(world: UnreliableNetwork) -> None:
    """Else all members would end at once: none is told what the others counted."""
    one, other = world.members
    one.say()
    settle(world, one)
    world.stream.append(encode_batch(Batch("x@1", 99, "x@1", 1, [])))
    world.is_out = True
    other.read_all()
    other.turn.want()
    world.now += LEASE_SECONDS + 0.1
    other.turn.tick()
    world.is_out = False
    world.now += LEASE_SECONDS - 0.1
    other.turn.tick()
    assert not other.is_damaged
    world.now += 0.2
    other.turn.tick()
    assert other.is_damaged


def test_a_member_that_leaves_gives_the_turn_up(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    one.say()
    assert not one.turn.leave()
    while one.calls:
        one.run()
    one.read_all()
    one.run()
    one.read_all()
    assert one.turn.leave()
    other.read_all()
    other.say()
    settle(world, other)
    assert other.turn.acting, "without waiting for the lease"
    assert len(other.log) == 1


def test_a_killed_member_does_not_get_the_turn_that_it_wanted(world: UnreliableNetwork) -> None:
    """All others would wait for the lease."""
    one, other = world.members
    one.say()
    settle(world, one)
    one.turn.pinned = True
    one.turn.wanted(TurnMember(world, "killed").turn.me)
    other.say()
    world.now += WISH_SECONDS + 0.1
    one.turn.wanted(other.turn.me)  # which says so again and again
    one.turn.pinned = False
    settle(world, other)
    assert other.turn.acting


def test_members_do_not_wait_for_a_removed_gateway(world: UnreliableNetwork) -> None:
    one, other = world.members
    one.say()
    settle(world, one)
    world.stream.append(encode_removal("a"))
    world.members = [other]
    other.read_all()
    other.say()
    settle(world, other)
    assert other.turn.acting, "without waiting for the lease"
    one.say()
    one.read_all()
    assert (one.is_removed, one.is_lost, one.turn.acting) == (True, False, False)
    assert (one.turn.ignored, other.turn.ignored) == (0, 0)


def test_a_name_that_was_removed_may_be_used_again(world: UnreliableNetwork) -> None:
    one, other = world.members
    world.stream.append(encode_removal("a"))
    other.read_all()
    one.read = len(world.stream)  # its backup is newer
    one.say()
    settle(world, one)
    assert one.turn.acting
    other.read_all()
    world.members = [other]
    other.say()
    settle(world, other)
    assert not other.turn.acting, "it waits for it as for everybody"


def test_a_gateway_that_came_back_keeps_the_turn_that_it_asked_for(world: UnreliableNetwork) -> None:
    """It has sent no batch yet since it was removed."""
    one, gone = world.members
    third = TurnMember(world, "c")
    one.say()
    settle(world, one)
    world.stream.append(encode_removal("b"))
    for each in (one, third):
        each.read_all()
    world.members = [one, third, back := TurnMember(world, gone.name)]
    one.turn.wanted(back.turn.me)
    third.read_all()
    assert third.turn.position.holder == back.turn.me
    elements = len(world.stream)
    third.say()
    assert len(world.stream) == elements, "nobody claims the turn at once"


@pytest.mark.parametrize("data", [b"remove a 00000000\n", encode_removal("a")[:-1], encode_removal("a" * 65), b""])
def test_a_malformed_removal_is_ignored(world: UnreliableNetwork, data: bytes) -> None:
    assert decode_removal(data) is None
    world.members[0].turn.arrived(data)
    assert (world.members[0].is_removed, world.members[0].turn.ignored) == (False, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_have_the_same_log_after_random_faults(seed: int) -> None:
    random = Random(seed)
    world = UnreliableNetwork(random)
    world.members = [TurnMember(world, name) for name in "abc"]
    said_again = 0
    for _ in range(600):
        member = random.choice(world.members)
        move = random.choice([member.say, member.say, member.run, member.run, member.read_one, member.read_all])
        if random.random() < 0.3:
            move = random.choice([world.land, world.land, member.turn.tick])
        if random.random() < 0.01:
            world.now += random.choice([0.02, 0.5, STALLED_SECONDS, LEASE_SECONDS + 1])
        move()
        if member.is_lost or random.random() < 0.005:  # it is killed, and begins with what is on its disk
            again = TurnMember(world, member.name)
            again.read_all()
            assert again.log[: len(member.log)] == member.log, "the disk has a beginning of the stream"
            world.members[world.members.index(member)] = again
            said_again += 1
    every = world.lines()
    for member in world.members:
        member.read_all()
        assert member.log == every or member.is_lost
    assert len(every) == len(set(every))
    assert not set(world.confirmed) - set(every), "nothing that was accepted is lost"


def test_turns_are_taken_in_the_random_walks() -> None:
    """The walks above say something, in many turns: else they would prove nothing."""
    random = Random(1)
    world = UnreliableNetwork(random)
    world.members = [TurnMember(world, name) for name in "abc"]
    for _ in range(6_000):
        world.now += 0.005
        member = random.choice(world.members)
        random.choice([member.say, member.run, member.run, member.read_all, member.turn.tick, world.land])()
    batches = [decode_batch(data) for data in world.stream]
    assert all(encode_batch(each) in world.stream for each in batches)
    assert len({each.member for each in batches if each.lines}) == 3
    assert len(world.lines()) > 10
