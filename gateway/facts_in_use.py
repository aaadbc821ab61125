"""Tells compaction which facts the running gateway uses, and forgets those that leave the log; runs on the loop."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.bus import Bus
from gateway.storage.record import Fact

from .adapter import Adapter


class GatewayFactCache:
    """The `FactCache` that `gateway.storage.compaction` uses: channels, peers, and what the adapters hold."""

    def __init__(self, bus: Bus, adapters: Sequence[Adapter]) -> None:
        self._bus = bus
        self._adapters = {adapter.name: adapter for adapter in adapters}

    def in_use(self, facts: Sequence[Fact]) -> list[bool]:
        """Return, for each of *facts*, whether it is about an open or subscribed channel, or a peer that is present."""
        unconnected = self._bus.presence.numbers_without_connection()
        return [self._is_used(fact, unconnected) for fact in facts]

    def forget(self, fact: Fact) -> None:
        """Remove *fact* from memory."""
        match fact.kind, fact.fields:
            case "channel", {"channel": name}:
                self._bus.channels.forget(name)
            case "peer", {"protocol": protocol, "sender": identity}:
                self._bus.peers.forget(protocol, identity)
            case "entity", _ if fact.protocol in self._adapters:
                self._adapters[fact.protocol].forget(fact)

    def last_seq(self) -> int:
        """The sequence of the last appended record."""
        return self._bus.ledger.next_seq - 1

    def _is_used(self, fact: Fact, unconnected: set[int]) -> bool:
        match fact.kind, fact.fields:
            case "channel", {"channel": name}:
                return self._bus.channels.in_use(name)
            case "peer", {"peer": number}:
                return number in unconnected or self._bus.connection_count(number) > 0
            case "entity", _ if fact.protocol in self._adapters:
                return self._adapters[fact.protocol].in_use(fact)
        return False
