"""How long a fact stays once the messages around it are retired: until a later fact supersedes it, or nothing
references it.

Laws of this file. Every kept entry *references* the facts without which it cannot be understood, and they precede it in
the log. So one pass over the facts, from the newest to the oldest, finds all that are needed. The table is in
docs/log.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from gateway.core.message import Message

from .record import Entry, Fact


class Lifetime(NamedTuple):
    """How long a fact stays: until a later one has its *subject*, and while a kept entry references it.

    *referenced_as* are the names by which it is referenced; if it is None, the fact stays even without a reference.
    """

    subject: str
    referenced_as: tuple[str, ...] | None = None


class FactRules(Protocol):
    """An adapter's rules for the facts of its protocol."""

    def flaw(self, entry: Entry) -> str | None:
        """Why *entry* is not valid for the adapter; None if it is."""

    def lifetime(self, fact: Fact) -> Lifetime | None:
        """How long *fact* stays; None if it is not an `entity` of this adapter."""

    def references(self, entry: Entry) -> Iterable[str]:
        """The names of the facts without which *entry* cannot be understood: see `Lifetime.referenced_as`."""


class Lifetimes:
    """The lifetimes and references of all entries: the gateway's own rules and those of the adapters."""

    def __init__(self, adapters: Sequence[FactRules]) -> None:
        self._adapters = adapters

    def lifetime(self, fact: Fact) -> Lifetime | None:
        """How long *fact* stays; None if no rule says so, and it is kept."""
        if any(adapter.flaw(fact) is not None for adapter in self._adapters):
            return None
        match fact.kind, fact.fields:
            case "channel", {"channel": name, "open": is_open}:
                return Lifetime(channel(name), None if is_open else (channel(name),))
            case "peer", {"peer": number, "protocol": protocol, "sender": identity}:
                return Lifetime(f"identity {protocol} {identity}", (peer(number),))
        return next((lifetime for adapter in self._adapters if (lifetime := adapter.lifetime(fact)) is not None), None)

    def references(self, entry: Entry) -> Iterator[str]:
        """The names of the facts without which *entry* cannot be understood."""
        if isinstance(entry, Message):
            yield channel(entry.channel)
            yield peer(entry.sender.number)
        for adapter in self._adapters:
            if adapter.flaw(entry) is None:
                yield from adapter.references(entry)


def channel(name: str) -> str:
    """The name that a channel is referenced by."""
    return f"channel {name}"


def peer(number: int) -> str:
    """The name that a peer is referenced by."""
    return f"peer {number}"


def number_end(fact: Fact) -> int:
    """The first peer number beyond those that *fact* assigns; 0 if it assigns none."""
    match fact.kind, fact.fields:
        case "peer", {"first": first, "count": count}:
            return int(first + count)
        case "peer", {"peer": number}:
            return int(number) + 1
    return 0
