"""What the HTTP connections of both servers share: two limits, and what they need of their gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.core.bus import Bus
    from gateway.core.memory_budget import MemoryBudget
    from gateway.listeners.admission import Admission
    from gateway.listeners.proxies import TrustedProxies

RETRY_HEADERS = {"Retry-After": "10"}  # seconds; sent if there is no room for a connection
MAX_DISCARDED = 4 << 20  # bytes that a client may send after its last response


class HttpGateway(Protocol):
    """A gateway as its HTTP connections see it; it has all of this once it has started, before they are accepted."""

    @property
    def admission(self) -> Admission:
        """Counts connections, and has the limits of their time, which may change while the gateway runs."""

    @property
    def budget(self) -> MemoryBudget:
        """Counts the memory that is held for clients."""

    @property
    def bus(self) -> Bus:
        """The bus, whose `read_pacer` limits what is read."""

    @property
    def proxies(self) -> TrustedProxies:
        """The proxies that may open many connections."""
