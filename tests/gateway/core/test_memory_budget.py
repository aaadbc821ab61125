"""One budget of memory for all that is kept for peers."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.memory_budget import AUDITS_PER_BUDGET, FEW, MAX_AUDIT_STEP, SLICE, Holder, MemoryBudget


class FakeHolder:
    def __init__(self, holding: int, network: str = "192.0.2.1") -> None:
        self.held_size = holding
        self.network = network

    def release_memory(self) -> None:
        self.held_size = 0


def holders(budget: MemoryBudget, *sizes: int, network: str = "192.0.2.1") -> list[FakeHolder]:
    found = [FakeHolder(size, network) for size in sizes]
    for keeper in found:
        budget.enter(keeper)
    return found


def test_no_holder_is_released_while_there_is_room() -> None:
    budget = MemoryBudget(100)
    keepers = holders(budget, 50, 30, 20)
    budget.audit()
    assert [keeper.held_size for keeper in keepers] == [50, 30, 20]
    assert budget.held == 100


def test_the_largest_holder_is_released_first_and_no_more_than_needed() -> None:
    told: list[tuple[Holder, int]] = []
    budget = MemoryBudget(80, lambda holder, size: told.append((holder, size)))
    keepers = holders(budget, 50, 30, 20)
    budget.audit()
    assert [keeper.held_size for keeper in keepers] == [0, 30, 20]
    assert told == [(keepers[0], 50)]
    budget.audit()
    assert len(told) == 1


def test_the_network_that_holds_most_loses_a_holder_first() -> None:
    budget = MemoryBudget(80)
    many = holders(budget, *[10] * 8)
    (large,) = holders(budget, 20, network="192.0.2.2")
    budget.audit()
    assert large.held_size == 20
    assert sum(keeper.held_size for keeper in many) == 50


def test_a_removed_holder_is_not_audited() -> None:
    budget = MemoryBudget(10)
    (keeper,) = holders(budget, 50)
    budget.leave(keeper)
    budget.leave(keeper)
    budget.audit()
    assert keeper.held_size == 50


def test_an_audit_follows_each_part_of_the_budget_that_was_read() -> None:
    for limit in (160, MAX_AUDIT_STEP * AUDITS_PER_BUDGET * 10):
        budget = MemoryBudget(limit)
        step = min(limit // AUDITS_PER_BUDGET, MAX_AUDIT_STEP)
        (keeper,) = holders(budget, limit + 1)
        budget.record_read(step - 1)
        assert keeper.held_size
        budget.record_read(1)
        assert not keeper.held_size


@given(st.lists(st.tuples(st.integers(0, 1000), st.sampled_from("abc"))), st.integers(8, 2000))
def test_after_an_audit_everything_fits_and_large_holders_went_first(sizes: list[tuple[int, str]], limit: int) -> None:
    gone: list[tuple[str, int]] = []
    budget = MemoryBudget(limit, lambda holder, size: gone.append((holder.network, size)))
    keepers = [holders(budget, size, network=name)[0] for size, name in sizes]
    budget.audit()
    left = sum(keeper.held_size for keeper in keepers)
    assert left <= limit
    if gone:
        assert left + gone[-1][1] > limit - limit // 8, "the last of them had to go"
    for name in "abc":
        went = [size for network, size in gone if network == name]
        stayed = [keeper.held_size for keeper in keepers if keeper.network == name]
        assert not went or min(went) >= max(stayed)


def many(budget: MemoryBudget, size: int) -> tuple[list[FakeHolder], list[Callable[[], None]]]:
    """More holders than are asked at once, and the calls that the *budget* postpones."""
    posted: list[Callable[[], None]] = []
    budget.post = posted.append
    return holders(budget, *[size] * (4 * FEW)), posted


def test_many_holders_are_asked_a_few_at_a_time() -> None:
    """Ten thousand took 75 ms, once a second and after every few megabytes."""
    budget = MemoryBudget(1 << 30)
    keepers, posted = many(budget, 10)
    budget.audit_soon()
    turns = 0
    while posted:
        budget.audit_soon()  # one is under way
        assert len(posted) == 1
        posted.pop()()
        turns += 1
    assert turns == 4 * FEW // SLICE
    assert all(keeper.held_size == 10 for keeper in keepers)


def test_if_many_hold_too_much_the_largest_is_released() -> None:
    budget = MemoryBudget(4 * FEW * 10)
    keepers, posted = many(budget, 10)
    budget.audit_soon()
    posted.pop()()
    keepers[-1].held_size = 1_000
    while posted:
        posted.pop()()
    assert keepers[-1].held_size == 0


def test_what_is_read_while_many_are_asked_counts() -> None:
    budget = MemoryBudget(4 * FEW * 10)
    keepers, posted = many(budget, 10)
    budget.audit_soon()
    budget.record_read(1)
    keepers[0].held_size = 11  # it was asked before
    while posted:
        posted.pop()()
    assert keepers[0].held_size == 0


def test_much_that_is_read_while_many_are_asked_is_audited_at_once() -> None:
    budget = MemoryBudget(4 * FEW * 10)
    keepers, _ = many(budget, 10)
    budget.audit_soon()
    keepers[0].held_size = 11
    budget.record_read(2 * budget.limit // AUDITS_PER_BUDGET)
    assert keepers[0].held_size == 0
