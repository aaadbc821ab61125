"""The network that a connection comes from, as limits count it: an IPv4 address, or a /64 network of IPv6.

A host with one address of an IPv6 network usually has all 2**64 of them (RFC 6177), so that limits by address would
have no effect.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address

PREFIX = 64  # bits of an IPv6 address that distinguish one customer from another


@lru_cache(maxsize=4096)
def network(address: str) -> str:
    """The network of *address*: `2001:db8::/64` for `2001:db8::1`; what is not an IPv6 address is returned as it is."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    host_bits = 128 - PREFIX
    return f"{IPv6Address(int(found) >> host_bits << host_bits)}/{PREFIX}"
