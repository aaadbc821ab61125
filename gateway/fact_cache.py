"""What the gateway remembers of facts that are to leave the log: whether they are in use, and how they are forgotten.

All of it runs on the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.bus import Bus
from gateway.storage.record import Fact

from .adapter import Adapter


class GatewayFactCache:
    """The memory of a running gateway, as `gateway.storage.compaction` asks it."""

    def __init__(self, bus: Bus, adapters: Sequence[Adapter]) -> None:
        self._bus = bus
        self._adapters = {adapter.name: adapter for adapter in adapters}

    def in_use(self, facts: Sequence[Fact]) -> list[bool]:
        """Which of *facts* speak of a channel that is open or listened to, or of somebody who is there."""
        guests = self._bus.presence.guest_numbers()
        return [self._is_used(fact, guests) for fact in facts]

    def forget(self, fact: Fact) -> None:
        """Remember nothing of *fact*."""
        match fact.kind, fact.fields:
            case "channel", {"channel": name}:
                self._bus.channels.forget(name)
            case "peer", {"protocol": protocol, "sender": identity}:
                self._bus.peers.forget(protocol, identity)
            case "entity", _ if fact.protocol in self._adapters:
                self._adapters[fact.protocol].forget(fact)

    def last_seq(self) -> int:
        """The last record that was appended."""
        return self._bus.ledger.next_seq - 1

    def _is_used(self, fact: Fact, guests: set[int]) -> bool:
        match fact.kind, fact.fields:
            case "channel", {"channel": name}:
                return self._bus.channels.in_use(name)
            case "peer", {"peer": number}:
                return number in guests or self._bus.connection_count(number) > 0
            case "entity", _ if fact.protocol in self._adapters:
                return self._adapters[fact.protocol].in_use(fact)
        return False
