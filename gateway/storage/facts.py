"""How long a fact stays once the messages around it have been retired: until a later one takes its place, or nobody
needs it any more.

Laws of this file. A fact that is kept, and a message that is kept, each *mention* what they cannot be understood
without; they stand behind it in the log. So one look at the facts from the newest to the oldest finds all that is
needed. The table is in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from gateway.core.message import Message

from .record import Entry, Fact


class Lifetime(NamedTuple):
    """How long a fact stays: until a later one has its *subject*, and while a kept entry references it.

    *referenced_as* are the names it is referenced by; with None the fact stays whether it is referenced or not.
    """

    subject: str
    referenced_as: tuple[str, ...] | None = None


class FactRules(Protocol):
    """What an adapter knows of the facts of its protocol."""

    def flaw(self, entry: Entry) -> str | None:
        """What makes no sense to the adapter in *entry*; None if nothing does."""

    def lifetime(self, fact: Fact) -> Lifetime | None:
        """How long an `entity` of the adapter's stays; None where it is another's."""

    def references(self, entry: Entry) -> Iterable[str]:
        """What *entry* cannot be understood without, by the names that `Lifetime.referenced_as` has."""


class Lifetimes:
    """Asks the adapters."""

    def __init__(self, adapters: Sequence[FactRules]) -> None:
        self._adapters = adapters

    def lifetime(self, fact: Fact) -> Lifetime | None:
        """How long *fact* stays; None where nobody knows, so that it stays for good."""
        if any(adapter.flaw(fact) is not None for adapter in self._adapters):
            return None
        match fact.kind, fact.fields:
            case "channel", {"channel": name, "open": is_open}:
                return Lifetime(channel(name), None if is_open else (channel(name),))
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                return Lifetime(f"identity {protocol} {identity}", (peer(number),))
        return next((lifetime for adapter in self._adapters if (lifetime := adapter.lifetime(fact)) is not None), None)

    def references(self, entry: Entry) -> Iterator[str]:
        """What *entry* cannot be understood without."""
        if isinstance(entry, Message):
            yield channel(entry.channel)
            yield peer(entry.sender.number)
        for adapter in self._adapters:
            if adapter.flaw(entry) is None:
                yield from adapter.references(entry)


def channel(name: str) -> str:
    """What mentions a channel."""
    return f"channel {name}"


def peer(number: int) -> str:
    """What mentions a peer."""
    return f"peer {number}"


def number_end(fact: Fact) -> int:
    """The first peer number beyond those that *fact* gives away; 0 where it gives none."""
    match fact.kind, fact.fields:
        case "peer", {"first": first, "count": count}:
            return int(first + count)
        case "peer", {"peer": number}:
            return int(number) + 1
    return 0
