"""Takes what other gateways of a cluster logged: appends the same lines, and delivers them as if accepted here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import groupby

from gateway.adapter import Adapter
from gateway.cluster.signals import BadSignal
from gateway.core.bus import Bus
from gateway.core.errors import ProtocolError, RequestError
from gateway.core.message import LATE_AFTER, REST, Message, Peer
from gateway.storage.fact_lifetimes import number_end
from gateway.storage.log import Log
from gateway.storage.record import Entry, Fact

logger = logging.getLogger(__name__)


class ForeignEntries:
    """Takes entries in their order; nothing else is logged for them. *reach* moves the clock of the log on."""

    def __init__(self, bus: Bus, log: Log, adapters: Sequence[Adapter], reach: Callable[[int], None]) -> None:
        self._bus = bus
        self._log = log
        self._adapters = adapters
        self._reach = reach

    def take(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Log *lines*, whose records are *entries*, and act on them."""
        self._reach(entries[-1].time)
        runs, at = [list(group) for _, group in groupby(entries, _run_of)], 0
        for run in runs:
            self._log.adopt(run, lines[at : at + len(run)])
            at += len(run)
        for run in runs:
            try:
                self._learn(run)
            except Exception:  # a bug; the log is complete all the same
                logger.exception("what another gateway accepted is in the log, but not known to all of this one")

    def flaw(self, message: Message) -> str | None:
        """What is wrong with a direct *message* that another gateway sent; None if nothing is."""
        if message.protocol == REST:
            return None
        adapter = next((each for each in self._adapters if each.name == message.protocol), None)
        return "an unknown protocol" if adapter is None else adapter.flaw(message)

    def hear(self, protocol: str, data: bytes) -> None:
        """Give *data*, from the adapter of *protocol* at another gateway, to the one here; raises `BadSignal`."""
        for adapter in self._adapters:
            if adapter.name == protocol:
                try:
                    adapter.receive_from_member(data)
                except (RequestError, ProtocolError, ValueError) as error:
                    raise BadSignal(str(error)) from None
                return
        raise BadSignal("an unknown protocol")

    def _learn(self, run: Sequence[Entry]) -> None:
        if isinstance(run[0], Fact):
            self._apply(run[0])
        for adapter in self._adapters:
            adapter.learn(run)
        if messages := [each for each in run if isinstance(each, Message)]:
            self._bus.hand_over(messages, (None,) * len(messages))

    def _apply(self, fact: Fact) -> None:
        match fact.kind, fact.fields:
            case "channel", {"channel": name, "addresses": addresses, "open": is_open}:
                self._bus.channels.restore(name, addresses, open=is_open)
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                self._bus.peers.learn(Peer(number, protocol, identity, fact.fields.get("name")))
            case "peer", _:
                self._bus.peers.skip(number_end(fact))


def _run_of(entry: Entry) -> tuple[object, ...]:
    """What the messages of a run have in common; a fact is alone."""
    if isinstance(entry, Fact):
        return (entry.seq,)
    entry.late = 0 < entry.timestamp < entry.time - LATE_AFTER
    return entry.channel, entry.protocol, entry.late
