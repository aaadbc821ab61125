"""How much one address, one peer and one channel may do: token buckets, in memory, bounded.

A bucket holds `burst` requests and gains `rate` a second. Somebody who finds a bucket empty is told how long to
wait; nothing is queued. The number of buckets is bounded too: those not used for longest are forgotten, full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .bus import SUBSCRIPTIONS
from .message import Peer
from .session import Principal

MAX_BUCKETS = 50_000


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
    connections: int = Field(
        default=20_000, ge=1, description="sessions of all protocols together; as many again may only ask by HTTP"
    )
    connections_per_address: int = Field(default=10_000, ge=1)
    subscriptions: int = Field(default=SUBSCRIPTIONS, ge=1, description="channels that one connection may listen to")
    handshake_seconds: float = Field(default=10.0, gt=0, description="a connection that says nothing is dropped")


class Buckets:
    """Token buckets by key. *clock* gives seconds."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._rate = rate.rate
        self._burst = rate.burst
        self._clock = clock
        self._levels: OrderedDict[str | int, tuple[float, float]] = OrderedDict()

    def take(self, key: str | int) -> float:
        """Take one token of *key*; 0 if there was one, else the seconds until there is."""
        now = self._clock()
        level, then = self._levels.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - then) * self._rate)
        wait = 0.0 if level >= 1 else (1 - level) / self._rate
        self._levels[key] = (level if wait else level - 1, now)
        if len(self._levels) > MAX_BUCKETS:
            self._levels.popitem(last=False)
        return wait


class Throttle:
    """The three buckets that every request passes; one that is about no channel (`""`) passes two."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._addresses = Buckets(limits.address, clock)
        self._peers = Buckets(limits.peer, clock)
        self._channels = Buckets(limits.channel, clock)

    def __call__(self, principal: Principal, peer: Peer, channel: str) -> float:
        """Seconds to wait, 0 when the request may pass."""
        return (
            (self._addresses.take(principal.address) if principal.address else 0.0)
            or self._peers.take(peer.number)
            or (self._channels.take(channel) if channel else 0.0)
        )
