"""Channel names and the address each protocol knows them by: total, reversible, never reused.

A channel is a plain string. Its addresses follow from its name by the rule of each protocol (an
`Addressing`), or are assigned (what must be minted cannot follow from a name). This module holds the
table; what an address looks like is the adapters' business.

A channel is *entered* while somebody listens to it (memory only) and *settled* once it carried a message or
was asked for by name (a fact in the log). Looking a channel up does neither.

The limit counts what is entered, what is settled and open, and what is closed as long as a message of it is kept: to
close a channel frees its place at once or when retention takes its last message, after a restart too. What it was
called stays its own for ever, so there is a second limit, to the names that are remembered.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from .errors import TooManyChannels, UnknownChannel
from .names import SortedNames

MAX_NAME = 255
LIMIT = 100_000  # channels, about 1 KiB of memory each
NAMES_FACTOR = 4  # times the limit: names that are remembered, of closed channels of which nothing is kept too
RECLAIM_BATCH = 64  # closed channels that are looked at, when there is no room, for whether anything of theirs is kept
GATEWAY_PREFIX = "gateway/"  # channels on which only the gateway itself speaks
INBOX = "/@"  # marks the address of one peer inside a channel

Record = Callable[[str, Mapping[str, str], bool], None]
Kept = Callable[[Sequence[str]], Collection[str]]


class Addressing(Protocol):
    """How one protocol names channels."""

    @property
    def name(self) -> str:
        """The protocol."""

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        """The address that follows from *channel*; None where addresses are assigned instead."""

    def channel(self, address: str) -> str | None:
        """The channel that *address* names by rule; None where only the table knows."""


def valid_name(name: str) -> bool:
    """Whether *name* can be a channel: 1 to 255 characters, none of them a control character or half of one."""
    return 0 < len(name) <= MAX_NAME and INBOX not in name and not any(map(_bad, name))


def _bad(character: str) -> bool:
    return not character.isprintable() and unicodedata.category(character) in ("Cc", "Cs")


class Channels:
    """The table of channels and addresses.

    *record* is called with (channel, addresses, open) whenever a settled channel changes; it writes the fact.
    With *create* off only channels that were settled by configuration exist. There are at most *limit* that users made;
    *kept* says of which of some closed channels a message is kept.
    """

    def __init__(
        self,
        rules: Iterable[Addressing],
        record: Record,
        *,
        create: bool = True,
        limit: int = LIMIT,
        kept: Kept = lambda names: names,
    ) -> None:
        self._rules = {rule.name: rule for rule in rules}
        self._record = record
        self._create = create
        self._limit = limit
        self._kept = kept
        self._addresses: dict[str, dict[str, str]] = {}
        self._names: dict[str, dict[str, str]] = {protocol: {} for protocol in self._rules}
        self._registered: set[str] = set()
        self._closed: dict[str, None] = {}  # those that were looked at for room come last
        self._held: set[str] = set()
        self._reclaimable: set[str] = set()  # closed, of which no message is kept: they take nobody's place
        self._listed = SortedNames()  # settled and open, or entered
        self._incomplete: set[str] = set()  # settled when some adapter was switched off that is on now
        self._complete: set[str] = set()  # settled, neither closed nor behind

    def channel(self, protocol: str, address: str) -> str:
        """The channel called *address* in *protocol*; `UnknownChannel` if there can be none."""
        name = self._names[protocol].get(address)
        if name is None:
            name = self._rules[protocol].channel(address)
            if name is None or not valid_name(name):
                raise UnknownChannel(address)
            if self._addresses.get(name, {}).get(protocol, address) != address:  # it is pinned to another one
                raise UnknownChannel(address)
        return name

    def address(self, protocol: str, channel: str) -> str | None:
        """What *protocol* calls *channel*; None where no address has been assigned yet."""
        address = self._addresses.get(channel, {}).get(protocol)
        return self._derive_address(protocol, channel) if address is None else address

    def owner(self, protocol: str, address: str) -> str | None:
        """The channel in this table that has *address* in *protocol*; None where none has."""
        return self._names.get(protocol, {}).get(address)

    def addresses(self, channel: str) -> Mapping[str, str]:
        """Every address of *channel*, by protocol."""
        return self._all_addresses(channel) | self._addresses.get(channel, {})

    def exists(self, channel: str) -> bool:
        """Whether *channel* is settled and open."""
        return channel in self._registered and channel not in self._closed

    def registered(self) -> list[str]:
        """The names of all channels that exist, sorted; it looks at each of them."""
        return [name for name in self._listed if self.exists(name)]

    def listed(self, after: str, limit: int) -> list[str]:
        """At most *limit* names that come after one, in order, of channels that exist or that somebody listens to."""
        return self._listed.after(after, limit)

    def hold(self, channel: str) -> None:
        """Somebody listens to *channel*; `UnknownChannel` where channels are only configured, or `TooManyChannels`."""
        self.reserve(channel)
        self._held.add(channel)
        self._listed.add(channel)

    def release(self, channel: str) -> None:
        """Nobody listens any more: what was only in memory is forgotten."""
        self._held.discard(channel)
        if not self.exists(channel):
            self._listed.discard(channel)
        if channel not in self._registered:
            for protocol, address in self._addresses.pop(channel, {}).items():
                del self._names[protocol][address]

    def register(self, channel: str) -> None:
        """Make *channel* exist for good; nothing happens if it does."""
        if channel not in self._complete:
            self.reserve(channel)
            self._register(channel)

    def configure(self, channel: str) -> None:
        """Make *channel* exist because the operator says so, even where users cannot create any."""
        if channel not in self._addresses:
            self.restore(channel, self._all_addresses(channel), registered=False)
        if not self.exists(channel) or channel in self._incomplete:
            self._register(channel)

    def assign(self, protocol: str, channel: str, address: str) -> None:
        """Give *channel* the *address* that only the adapter could make; `ValueError` if it is taken."""
        if self._names[protocol].get(address, channel) != channel:
            raise ValueError(f"{address!r} is the address of {self._names[protocol][address]!r} already")
        if self.address(protocol, channel) == address and channel in self._registered:
            return
        self.reserve(channel)
        self._set_address(protocol, channel, address)
        self._register(channel)

    def pin(self, channel: str, addresses: Mapping[str, str]) -> None:
        """Make *channel* exist with these *addresses*; `ValueError` where one is taken, or it has another already."""
        for protocol, address in addresses.items():
            former = self._addresses.get(channel, {}).get(protocol)
            if channel in self._registered and former not in (None, address):
                raise ValueError(f"{channel!r} is {former!r} already, and an address never changes")
            if self._names[protocol].get(address, channel) != channel:
                raise ValueError(f"{address!r} is the address of {self._names[protocol][address]!r} already")
        if not self.exists(channel) or addresses.items() - self._addresses[channel].items():
            self.restore(channel, addresses, registered=False)
            self._register(channel)

    def close(self, channel: str) -> None:
        """Take *channel* off the list until somebody uses it again; its addresses stay its own."""
        if self.exists(channel):
            self._closed[channel] = None
            self._complete.discard(channel)
            if channel not in self._held:
                self._listed.discard(channel)
                self._mark_reclaimable((channel,))
            self._record(channel, self._addresses[channel], False)

    def in_use(self, channel: str) -> bool:
        """Whether *channel* is open, or somebody listens to it."""
        return self.exists(channel) or channel in self._held

    def forget(self, channel: str) -> None:
        """Remember nothing of a closed *channel* that nobody listens to: its name and its addresses are free."""
        for protocol, address in self._addresses.pop(channel, {}).items():
            del self._names[protocol][address]
        self._closed.pop(channel, None)
        for names in (self._registered, self._reclaimable, self._incomplete, self._complete):
            names.discard(channel)

    def restore(
        self, channel: str, addresses: Mapping[str, str], *, registered: bool = True, open: bool = True
    ) -> None:
        """Take over what the log says (or, not *settled*, what somebody listens to)."""
        self._addresses.setdefault(channel, {})
        for protocol, address in addresses.items():
            if protocol in self._names:  # an adapter may have been switched off
                self._set_address(protocol, channel, address)
        if registered:
            self._registered.add(channel)
            self._closed.pop(channel, None)
            if open:
                self._listed.add(channel)
            else:
                self._closed[channel] = None
            if self._all_addresses(channel).keys() - self._addresses[channel].keys():
                self._incomplete.add(channel)
            (self._complete.discard if channel in self._incomplete or not open else self._complete.add)(channel)

    def reserve(self, channel: str) -> None:
        """Make *channel* known in memory, if there is room."""
        known = channel in self._addresses
        if known and channel not in self._reclaimable and (self._create or channel not in self._closed):
            return
        if not self._create or not valid_name(channel):
            raise UnknownChannel(channel)
        self._make_room()
        if not known and len(self._addresses) >= self._limit * NAMES_FACTOR:
            raise TooManyChannels(
                f"{self._limit * NAMES_FACTOR:,} names are taken ({NAMES_FACTOR} times channels.limit)"
            )
        self._reclaimable.discard(channel)
        if not known:
            self.restore(channel, self._all_addresses(channel), registered=False)

    def _make_room(self) -> None:
        """Raise `TooManyChannels` unless there is room for one more; a closed channel makes it if nothing is kept."""
        if len(self._addresses) - len(self._reclaimable) >= self._limit:
            some = list(islice(self._closed, RECLAIM_BATCH))
            for name in some:
                del self._closed[name]
                self._closed[name] = None
            self._mark_reclaimable([name for name in some if name not in self._held and name not in self._reclaimable])
        if len(self._addresses) - len(self._reclaimable) >= self._limit:
            raise TooManyChannels(f"there are {self._limit:,} channels already (channels.limit)")

    def _mark_reclaimable(self, closed: Sequence[str]) -> None:
        """Those of *closed* channels of which no message is kept take no place any more."""
        self._reclaimable.update(set(closed).difference(self._kept(closed)))

    def _register(self, channel: str) -> None:
        for protocol, address in self._all_addresses(channel).items():
            if protocol not in self._addresses[channel]:
                self._set_address(protocol, channel, address)
        self._registered.add(channel)
        self._listed.add(channel)
        self._closed.pop(channel, None)
        self._reclaimable.discard(channel)
        self._incomplete.discard(channel)
        self._complete.add(channel)
        self._record(channel, dict(self._addresses[channel]), True)

    def _set_address(self, protocol: str, channel: str, address: str) -> None:
        entry = self._addresses[channel]
        if (former := entry.get(protocol)) is not None:
            del self._names[protocol][former]
        entry[protocol] = address
        self._names[protocol][address] = channel

    def _all_addresses(self, channel: str) -> dict[str, str]:
        found = {protocol: self._derive_address(protocol, channel) for protocol in self._rules}
        return {protocol: address for protocol, address in found.items() if address is not None}

    def _derive_address(self, protocol: str, channel: str) -> str | None:
        names = self._names[protocol]
        return self._rules[protocol].address(channel, lambda address: names.get(address, channel) != channel)
