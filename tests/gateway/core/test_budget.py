"""One budget of memory for all that is kept for peers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.budget import AUDITS_PER_BUDGET, MAX_AUDIT_STEP, Budget, Holder


class FakeHolder:
    def __init__(self, holding: int, network: str = "192.0.2.1") -> None:
        self.held_size = holding
        self.network = network

    def release_memory(self) -> None:
        self.held_size = 0


def holders(budget: Budget, *sizes: int, network: str = "192.0.2.1") -> list[FakeHolder]:
    found = [FakeHolder(size, network) for size in sizes]
    for keeper in found:
        budget.enter(keeper)
    return found


def test_no_holder_is_released_while_there_is_room() -> None:
    budget = Budget(100)
    keepers = holders(budget, 50, 30, 20)
    budget.audit()
    assert [keeper.held_size for keeper in keepers] == [50, 30, 20]
    assert budget.held == 100


def test_the_largest_holder_is_released_first_and_no_more_than_needed() -> None:
    told: list[tuple[Holder, int]] = []
    budget = Budget(80, lambda holder, size: told.append((holder, size)))
    keepers = holders(budget, 50, 30, 20)
    budget.audit()
    assert [keeper.held_size for keeper in keepers] == [0, 30, 20]
    assert told == [(keepers[0], 50)]
    budget.audit()
    assert len(told) == 1


def test_the_network_that_holds_most_loses_a_holder_first() -> None:
    budget = Budget(80)
    many = holders(budget, *[10] * 8)
    (large,) = holders(budget, 20, network="192.0.2.2")
    budget.audit()
    assert large.held_size == 20
    assert sum(keeper.held_size for keeper in many) == 50


def test_a_removed_holder_is_not_audited() -> None:
    budget = Budget(10)
    (keeper,) = holders(budget, 50)
    budget.leave(keeper)
    budget.leave(keeper)
    budget.audit()
    assert keeper.held_size == 50


def test_an_audit_follows_each_part_of_the_budget_that_was_read() -> None:
    for limit in (160, MAX_AUDIT_STEP * AUDITS_PER_BUDGET * 10):
        budget = Budget(limit)
        step = min(limit // AUDITS_PER_BUDGET, MAX_AUDIT_STEP)
        (keeper,) = holders(budget, limit + 1)
        budget.record_read(step - 1)
        assert keeper.held_size
        budget.record_read(1)
        assert not keeper.held_size


@given(st.lists(st.tuples(st.integers(0, 1000), st.sampled_from("abc"))), st.integers(8, 2000))
def test_after_an_audit_everything_fits_and_large_holders_went_first(sizes: list[tuple[int, str]], limit: int) -> None:
    gone: list[tuple[str, int]] = []
    budget = Budget(limit, lambda holder, size: gone.append((holder.network, size)))
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
