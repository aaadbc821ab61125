"""How long the turn is surely a member's own."""

from __future__ import annotations

import pytest

from gateway.cluster.earliest_claim import REST_SHARE, EarliestClaim

LEASE = 5.0
REST = REST_SHARE * LEASE


@pytest.fixture
def claim() -> EarliestClaim:
    """That of a member that began at 0 s."""
    return EarliestClaim(LEASE, 0.0)


def rests_from(claim: EarliestClaim) -> float:
    """The time from which a holder rests, to 0.1 s."""
    return next(tenths / 10 for tenths in range(10_000) if claim.is_near(tenths / 10 + 0.01))


def test_a_new_member_was_given_no_turn_before_it_began(claim: EarliestClaim) -> None:
    assert rests_from(claim) == REST


def test_a_batch_came_into_the_stream_after_it_was_sent(claim: EarliestClaim) -> None:
    claim.came_back(sent=10.0)
    assert rests_from(claim) == 10 + REST


def test_a_turn_was_given_after_it_was_asked_for(claim: EarliestClaim) -> None:
    claim.granted(asked=7.0)
    assert rests_from(claim) == 7 + REST


def test_what_is_known_to_be_later_counts(claim: EarliestClaim) -> None:
    claim.came_back(sent=10.0)
    claim.granted(asked=7.0)
    assert rests_from(claim) == 10 + REST
