from __future__ import annotations

import pytest

from gateway import limits
from gateway.limits import Buckets, Limits, Rate, Throttle
from gateway.message import Peer
from gateway.session import Principal


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    now = 0.0
    buckets = Buckets(Rate(rate=2, burst=3), lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.take("b") == 0, "one does not pay for another"
    now = 0.5
    assert buckets.take("a") == 0
    assert buckets.take("a") == pytest.approx(0.5)
    now = 100.0
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 0.5], "no more than the burst is saved up"


def test_the_number_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BUCKETS", 10)
    buckets = Buckets(Rate(rate=1, burst=1), lambda: 0.0)
    for key in range(1000):
        buckets.take(key)
    assert len(buckets._levels) == 10


def test_each_of_address_peer_and_channel_has_its_limit() -> None:
    one = Rate(rate=1, burst=1)
    many = Rate(rate=1000, burst=1000)
    peers = [Peer(number, "x") for number in (1, 2)]
    for name, second in (
        ("address", (Principal("a", "1.1.1.1"), peers[1], "c2")),
        ("peer", (Principal("a", "2.2.2.2"), peers[0], "c2")),
        ("channel", (Principal("a", "2.2.2.2"), peers[1], "c1")),
    ):
        settings = {"address": many, "peer": many, "channel": many} | {name: one}
        throttle = Throttle(Limits(**settings), lambda: 0.0)  # type: ignore[arg-type]
        assert throttle(Principal("a", "1.1.1.1"), peers[0], "c1") == 0
        assert throttle(*second) == 1
        assert throttle(Principal("a", "3.3.3.3"), Peer(9, "x"), "c9") == 0


def test_what_is_about_no_channel_takes_nothing_from_others() -> None:
    throttle = Throttle(Limits(channel=Rate(rate=1, burst=1)), lambda: 0.0)
    assert [throttle(Principal("a", "1.1.1.1"), Peer(1, "x"), "") for _ in range(3)] == [0, 0, 0]
    assert throttle(Principal("a", "1.1.1.1"), Peer(1, "x"), "c") == 0
