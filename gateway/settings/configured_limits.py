"""What the settings allow peers to use, and the log to keep: memory, bytes, days."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from gateway.core.buckets import TokenBuckets
from gateway.core.memory_budget import Holder, MemoryBudget
from gateway.core.read_pacer import ReadPacer
from gateway.storage.retention import RetentionLimits
from gateway.system import machine

if TYPE_CHECKING:
    from gateway.monitoring.metrics import Metrics

    from .limits import Limits
    from .settings import Settings

DAY = 86_400_000  # ms
MEMORY_SHARE = 4  # peers together may use 1/4 of the memory of the machine or container

logger = structlog.get_logger("trellis")


def retention_limits(settings: Settings) -> RetentionLimits:
    """The limits of retention in *settings*."""
    days = settings.log.keep_days
    return RetentionLimits(None if days is None else int(days * DAY), settings.log.keep_bytes)


def peer_memory_bytes(settings: Settings) -> int:
    """The memory in bytes that all peers together may use."""
    return settings.limits.memory or machine.memory() // MEMORY_SHARE


def memory_budget(settings: Settings, metrics: Metrics) -> MemoryBudget:
    """The budget of that memory; connections that it ends are counted and reported."""

    def report(holder: Holder, size: int) -> None:
        metrics.count("given_up")
        logger.warning(
            "a connection was given up: too much memory is held for peers (limits.memory)",
            network=holder.network,
            bytes=size,
        )

    return MemoryBudget(peer_memory_bytes(settings), report)


def read_pacer(limits: Limits, budget: MemoryBudget, crowded: Callable[[], bool]) -> ReadPacer:
    """Paces what is read of each network; *crowded* tells whether the log lags behind."""
    rate = limits.bytes
    buckets = TokenBuckets(rate.rate, rate.burst, monotonic) if limits.rates == "on" else None
    return ReadPacer(buckets, monotonic, budget, crowded)
