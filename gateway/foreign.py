"""Takes what other gateways submitted: it is logged as they log it, and known as if it had been submitted here."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.bus import Bus
from gateway.core.message import LATE_AFTER, Message, Peer
from gateway.storage.facts import number_end
from gateway.storage.log import Log
from gateway.storage.record import Entry, Fact

from .adapter import Adapter


class ForeignEntries:
    """Takes runs and facts in their order; nothing is submitted on that account."""

    def __init__(self, bus: Bus, log: Log, adapters: Sequence[Adapter]) -> None:
        self._bus = bus
        self._log = log
        self._adapters = adapters

    def take_run(self, run: Sequence[Message], time: int) -> None:
        """Take a *run* as `Bus.take` does at *time* (ms)."""
        for message in run:
            message.late = 0 < message.timestamp < time - LATE_AFTER
        self._bus.take(run, (None,) * len(run), time)
        self._learn(run)

    def take_fact(self, kind: str, fields: dict[str, object], time: int) -> None:
        """Log a fact at *time* (ms), and apply it."""
        fact = Fact(kind, fields, self._log.next_seq, time)
        self._log.append(fact)
        self._apply(fact)
        self._learn((fact,))

    def _apply(self, fact: Fact) -> None:
        match fact.kind, fact.fields:
            case "channel", {"channel": name, "addresses": addresses, "open": is_open}:
                self._bus.channels.restore(name, addresses, open=is_open)
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                self._bus.peers.learn(Peer(number, protocol, identity, fact.fields.get("name")))
            case "peer", _:
                self._bus.peers.skip(number_end(fact))

    def _learn(self, entries: Sequence[Entry]) -> None:
        for adapter in self._adapters:
            adapter.learn(entries)
