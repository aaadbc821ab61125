"""The throttle: enforces the request rates of network addresses, peers and channels.

A request that finds a bucket empty is refused with the seconds to wait; nothing is queued. The throttle returns these
seconds; `Bus.pace` (`gateway/core/bus.py`) raises `Throttled`. The rates are settings (`gateway/settings/limits.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.buckets import TokenBuckets
from gateway.core.message import Peer
from gateway.core.principal import Principal
from gateway.settings.limits import Limits


class Throttle:
    """The three buckets that every request passes; one about no channel (`""`) passes two."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._networks, self._peers, self._channels = (
            TokenBuckets(each.rate, each.burst, clock) for each in (limits.address, limits.peer, limits.channel)
        )

    def __call__(self, principal: Principal, peer: Peer | None, channel: str) -> float:
        """Take a token of each bucket; return the seconds to wait, 0 if the request may pass. *peer* may be None."""
        return (
            (self._networks.take(principal.network) if principal.network else 0.0)
            or (self._peers.take(peer.number) if peer is not None else 0.0)
            or (self._channels.take(channel) if channel else 0.0)
        )

    def take_network(self, network: str) -> float:
        """Take a token of *network*; return the seconds to wait before its request is handled, 0 if it may pass."""
        return self._networks.take(network) if network else 0.0

    def charge(self, network: str, requests: float) -> None:
        """Charge *network* for a request that is as much work as *requests* usual ones."""
        if network:
            self._networks.spend(network, requests)
