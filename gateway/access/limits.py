"""The `[limits]` section, and the throttle: request rates of one network address, one peer and one channel.

A request that finds a bucket empty is refused with the seconds to wait; nothing is queued. The throttle returns these
seconds; `Bus.pace` (`gateway/core/bus.py`) raises `Throttled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.buckets import TokenBuckets
from gateway.core.contracts import MAX_SUBSCRIPTIONS
from gateway.core.message import Peer
from gateway.core.principal import Principal


class Rate(BaseModel):
    """Requests a second, and how many at once."""

    model_config = ConfigDict(extra="forbid")
    rate: float = Field(gt=0)
    burst: float = Field(ge=1)


class Limits(BaseModel):
    """The `[limits]` section; `rates = "off"` lifts every rate limit."""

    model_config = ConfigDict(extra="forbid")
    rates: Literal["on", "off"] = "on"
    address: Rate = Rate(rate=2_000, burst=10_000)
    peer: Rate = Rate(rate=1_000, burst=5_000)
    channel: Rate = Rate(rate=5_000, burst=20_000)
    bytes: Rate = Rate(rate=16 << 20, burst=64 << 20)
    memory: int | None = Field(
        default=None, ge=1 << 20, description="bytes kept for all peers together; by default a quarter of the memory"
    )
    connections: int = Field(
        default=20_000, ge=1, description="sessions of all protocols; as many HTTP connections are allowed besides"
    )
    connections_per_address: int = Field(default=10_000, ge=1)
    subscriptions: int = Field(
        default=MAX_SUBSCRIPTIONS, ge=1, description="channels that one connection may listen to"
    )
    handshake_seconds: float = Field(default=10.0, gt=0, description="a connection that sends nothing is closed")
    keep_alive_seconds: float = Field(default=65.0, gt=0, description="an HTTP connection that was used is kept")


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
