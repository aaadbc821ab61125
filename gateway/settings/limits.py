"""The `[limits]` section: what an address, a peer, a channel and all of them together may use."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.contracts import MAX_SUBSCRIPTIONS


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
