from __future__ import annotations

import pytest

from gateway.core.networks import network


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::/64"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_limits_count_networks_of_ipv6_and_addresses_of_ipv4(address: str, counted: str) -> None:
    assert network(address) == counted
