from __future__ import annotations

import sys

import pytest

from gateway.core import buckets
from gateway.core.buckets import TokenBuckets


def test_a_bucket_allows_its_burst_and_then_its_rate() -> None:
    now = 0.0
    some = TokenBuckets(2, 3, lambda: now)
    assert [some.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert some.take("b") == 0, "one does not pay for another"
    now = 0.5
    assert some.take("a") == 0
    assert some.take("a") == pytest.approx(0.5)
    now = 100.0
    assert [some.take("a") for _ in range(4)] == [0, 0, 0, 0.5], "no more than the burst is saved up"


def test_spending_more_than_there_is_makes_a_debt() -> None:
    now = 0.0
    some = TokenBuckets(10, 100, lambda: now)
    assert [some.spend("a", 60), some.spend("a", 60)] == [0, 2]
    assert some.take("a") == pytest.approx(2.1)
    now = 2.0
    assert some.spend("a", 0) == 0
    assert some.spend("b", 100) == 0


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_BUCKETS", 10)
    some = TokenBuckets(1, 1, lambda: 0.0)
    for key in range(1000):
        some.take(key)
        some.spend(-key - 1, 1)
    assert len(some._levels) == 10


def test_long_keys_take_no_more_memory_than_short_ones_and_stay_distinct() -> None:
    some = TokenBuckets(1, 1, lambda: 0.0)
    long = "x" * 1_000_000
    assert [some.take(long), some.take(long), some.take(long + "y")] == [0, 1, 0]
    assert some.spend(long + "z", 2) == 1
    assert sum(map(sys.getsizeof, some._levels)) < 1000
