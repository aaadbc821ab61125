"""Members that used their last turns get the next one without a wish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.cluster.batch import Batch, decode_batch
from gateway.cluster.busy_members import BUSY_SECONDS, REMEMBERED, BusyMembers
from gateway.storage.record import Entry
from tests.gateway.cluster.turn_members import TurnMember, UnreliableNetwork, settle

ONE, OTHER, THIRD = "a@1", "b@2", "c@3"


def noted(*batches: tuple[str, str, int]) -> BusyMembers:
    """What is known after *batches* (member, next holder, lines), a millisecond apart."""
    busy = BusyMembers()
    for number, (member, holder, lines) in enumerate(batches, 1):
        busy.note(Batch(member, number, holder, 1, [b"line\n"] * lines), number / 1_000)
    return busy


def test_a_member_is_busy_after_two_batches_with_lines() -> None:
    once = [(ONE, OTHER, 1), (OTHER, ONE, 2)]
    assert noted(*once).first(0.0, THIRD) is None
    busy = noted(*once, (ONE, OTHER, 1), (OTHER, ONE, 1), (ONE, OTHER, 1))
    assert busy.contains(ONE, 0.0)
    assert busy.first(0.0, THIRD) == OTHER, "it used the turn least recently"
    assert busy.first(0.0, OTHER) == ONE


def test_a_member_is_not_busy_after_it_passed_the_turn_on_unused() -> None:
    claimed = [(ONE, ONE, 1), (ONE, ONE, 0), (ONE, ONE, 1)]
    assert noted(*claimed).contains(ONE, 0.0), "who claims the turn keeps it"
    assert not noted(*claimed, (ONE, OTHER, 0)).contains(ONE, 0.0)
    assert not noted(*claimed, (ONE, OTHER, 0), (ONE, OTHER, 1)).contains(ONE, 0.0), "it begins anew"


def test_an_earlier_life_of_a_gateway_is_not_busy() -> None:
    """Nobody would use the turn, until the lease is over."""
    busy = noted((ONE, ONE, 1), (ONE, ONE, 1), ("a@9", "a@9", 0))
    assert (busy.first(0.0, THIRD), busy.contains(ONE, 0.0)) == (None, False)
    busy = noted((ONE, ONE, 1), (ONE, ONE, 1), ("a@9", "a@9", 1))
    assert (busy.contains(ONE, 0.0), busy.contains("a@9", 0.0)) == (False, False)
    again = noted((ONE, ONE, 1), ("a@9", "a@9", 1), ("a@9", "a@9", 1))
    again.forget(ONE)  # heard late
    assert again.contains("a@9", 0.0)


def test_a_member_is_busy_if_it_used_the_last_two_rounds() -> None:
    """Whoever has something to say now and then is not expected to after each time."""
    rounds = [(ONE, OTHER, 1), (OTHER, THIRD, 1), (THIRD, ONE, 1)] * 2
    assert all(noted(*rounds).contains(member, 0.0) for member in (ONE, OTHER, THIRD))
    seldom = [(ONE, OTHER, 1), *[(OTHER, OTHER, 1)] * 5, (ONE, OTHER, 1)]
    assert not noted(*seldom).contains(ONE, 0.0)
    assert noted(*seldom, (OTHER, ONE, 1), (ONE, OTHER, 1)).contains(ONE, 0.0)


def test_a_member_that_used_no_turn_lately_does_not_lengthen_the_rounds() -> None:
    alone = [(ONE, ONE, 1)] * (REMEMBERED - 1)
    seldom = [(THIRD, ONE, 1), *alone, (OTHER, ONE, 1), *alone[:6], (OTHER, ONE, 1)]
    assert not noted(*seldom).contains(OTHER, 0.0)
    assert noted(*seldom[1:], (OTHER, ONE, 1)).contains(OTHER, 0.0)


def test_a_member_is_busy_for_some_time() -> None:
    used = [(ONE, OTHER, 1), (ONE, OTHER, 1)]
    assert noted(*used).contains(ONE, BUSY_SECONDS)
    assert not noted(*used).contains(ONE, BUSY_SECONDS + 0.003), "it may have ended"


class EagerMember(TurnMember):
    """A gateway with one publisher, who says the next thing as soon as the last one is accepted, *rest* times."""

    rest = 10**9
    wishes = 0

    def begin(self) -> None:
        super().begin()
        if self.rest > 0:
            self.say()

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        super().confirm(entries, lines)
        self.rest -= 1
        if self.rest > 0:
            self.calls.append(self.say)

    def want(self, member: str, batches: int) -> None:
        self.wishes += 1
        super().want(member, batches)


@pytest.fixture
def eager_world() -> UnreliableNetwork:
    """Three members that are busy."""
    world = UnreliableNetwork()
    members = [EagerMember(world, name) for name in "abc"]
    world.members = [*members]
    for member in members:
        member.say()
    settle(world, members[0])
    go_on(world, 12)
    for member in members:
        member.wishes = 0
    return world


def go_on(world: UnreliableNetwork, batches: int) -> list[Batch]:
    """Let everything happen but what time brings, until there are so many more *batches*; return these."""
    begun = len(world.stream)
    for _ in range(100 * batches):
        for each in world.members:
            if each.calls:
                each.run()
            each.read_one()
        if len(world.stream) >= begun + batches:
            break
    return [decode_batch(data) for data in world.stream[begun:]]


def members_of(world: UnreliableNetwork) -> list[EagerMember]:
    """The members, the one before first whose turn it is."""
    members = [each for each in world.members if isinstance(each, EagerMember)]
    names = [each.turn.me for each in members]
    at = names.index(decode_batch(world.stream[-1]).holder)
    return members[at:] + members[:at]


def test_the_turn_passes_among_busy_members_without_a_wish(eager_world: UnreliableNetwork) -> None:
    names = [member.turn.me for member in members_of(eager_world)]
    batches = go_on(eager_world, 9)
    assert [(batch.member, len(batch.lines)) for batch in batches] == [(name, 1) for name in names] * 3
    assert [member.wishes for member in members_of(eager_world)] == [0, 0, 0]


def test_a_member_passes_a_turn_on_that_it_does_not_need(eager_world: UnreliableNetwork) -> None:
    holder, idle, last = members_of(eager_world)
    idle.rest = 0
    names = {holder.turn.me: "holder", idle.turn.me: "idle", last.turn.me: "last"}
    found = [(names[batch.member], len(batch.lines)) for batch in go_on(eager_world, 7)]
    once = [("holder", 1), ("idle", 0), ("last", 1)]
    assert found == [*once, ("holder", 1), ("last", 1), ("holder", 1), ("last", 1)]
    assert holder.wishes == last.wishes == 0


def test_the_turn_rests_when_nobody_needs_it(eager_world: UnreliableNetwork) -> None:
    for member in members_of(eager_world):
        member.rest = 0
    assert 1 <= len(go_on(eager_world, 10)) <= 3


def test_a_member_that_is_expected_in_vain_says_that_it_wants_the_turn(eager_world: UnreliableNetwork) -> None:
    """As when the others have started since, and do not know that it is busy."""
    holder, other, busy = members_of(eager_world)
    for each in (holder, other):
        each.turn._busy.forget(busy.turn.me)
    assert not busy.turn._wishes._heard
    assert busy.turn.me not in {batch.member for batch in go_on(eager_world, 2)}
    assert busy.wishes == 0
    busy.turn.tick()
    assert busy.wishes == 1
    assert busy.turn.me in {batch.member for batch in go_on(eager_world, 4)}


def test_a_member_says_that_it_wants_the_turn_once_it_is_not_expected_to(eager_world: UnreliableNetwork) -> None:
    holder, other, busy = members_of(eager_world)
    for each in (holder, other):
        each.turn._busy.forget(busy.turn.me)
    assert busy.turn.me in {batch.member for batch in go_on(eager_world, 14)}
    assert busy.wishes, "it did not wait for a tick"


def test_a_member_that_leaves_is_not_expected(eager_world: UnreliableNetwork) -> None:
    holder, left, other = members_of(eager_world)
    for each in (holder, other):
        each.turn.left(left.turn.me)
    assert {batch.holder for batch in go_on(eager_world, 6)} == {holder.turn.me, other.turn.me}


def test_a_member_that_left_is_not_expected_after_its_last_batch(eager_world: UnreliableNetwork) -> None:
    """Signals are faster than batches: others may hear that it left before they read what it sent last."""
    left, *others = members_of(eager_world)
    for each in others:
        each.turn.left(left.turn.me)
    left.turn.pinned = True  # so that it sends two batches
    assert [batch.member for batch in go_on(eager_world, 2)][:2] == [left.turn.me] * 2
    left.turn.pinned = False
    assert left.turn.me not in {batch.holder for batch in go_on(eager_world, 9)[2:]}


def test_a_member_that_leaves_passes_the_turn_to_a_busy_one(eager_world: UnreliableNetwork) -> None:
    """Which said no wish, and would wait until it may be said again."""
    left, *others = members_of(eager_world)
    left.rest = 0
    left.turn.pinned = True  # it would pass the turn on at once
    left.read_all()
    assert left.turn.acting
    left.turn.leave()
    left.run()
    assert decode_batch(eager_world.stream[-1]).holder in {each.turn.me for each in others}


def test_a_member_that_is_not_expected_any_more_says_so_once(eager_world: UnreliableNetwork) -> None:
    """Other batches come before its turn."""
    holder, other, busy = members_of(eager_world)
    for each in (holder, other):
        each.turn._busy.forget(busy.turn.me)
        each.turn.wanted = lambda *_: None  # type: ignore[method-assign]  # nobody hears it
    go_on(eager_world, 30)
    assert busy.wishes == 1
