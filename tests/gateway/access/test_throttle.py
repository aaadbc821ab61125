from __future__ import annotations

from gateway.access.throttle import Throttle
from gateway.core.message import Peer
from gateway.core.principal import Principal
from gateway.settings.limits import Limits, Rate


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


def test_a_request_about_no_channel_takes_no_channel_token() -> None:
    throttle = Throttle(Limits(channel=Rate(rate=1, burst=1)), lambda: 0.0)
    assert [throttle(Principal("a", "1.1.1.1"), Peer(1, "x"), "") for _ in range(3)] == [0, 0, 0]
    assert throttle(Principal("a", "1.1.1.1"), Peer(1, "x"), "c") == 0
