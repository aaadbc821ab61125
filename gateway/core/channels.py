"""Channel names and the address of each channel in each protocol: total, reversible, never reused.

A channel is a plain string. Its addresses are derived from its name by the rule of each protocol (an `Addressing`), or
are assigned (an address that has to be created, as a Sprout community, cannot be computed from a name). This module
keeps the table; what an address looks like is up to the adapters.

A channel is *held* while it has listeners (in memory only), and *registered* once it carried a message or was created
by name (a fact in the log). Looking a channel up does neither.

The limit counts channels that are held, that are registered and open, and that are closed as long as a message of
theirs is kept: a closed channel stops counting at once, or when retention removes its last message, after a restart
too. Its name and addresses stay its own, so a second limit bounds the names that are remembered.
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
NAMES_FACTOR = 4  # times the limit: names that are remembered, those of reclaimable channels included
RECLAIM_BATCH = 64  # closed channels that are checked for kept messages at a time when there is no room
GATEWAY_PREFIX = "gateway/"  # of channels on which only the gateway and administrators publish
INBOX = "/@"  # marks the address of one peer in a channel
CREATION_COST = 50  # requests that a new channel counts as: all threads work 3 ms for it, 0.02 to 0.06 for a message

Record = Callable[[str, Mapping[str, str], bool], None]
Kept = Callable[[Sequence[str]], Collection[str]]


class Addressing(Protocol):
    """How one protocol names channels."""

    @property
    def name(self) -> str:
        """The protocol."""

    def address(self, channel: str, taken: Callable[[str], bool]) -> str | None:
        """The address derived from *channel*, of which *taken* is false; None if addresses are assigned instead."""

    def channel(self, address: str) -> str | None:
        """The channel from which *address* is derived; None if only the table knows."""


def valid_name(name: str) -> bool:
    """Whether *name* can be a channel: 1 to 255 characters, no `/@`, control characters or surrogates."""
    return 0 < len(name) <= MAX_NAME and INBOX not in name and (name.isprintable() or not any(map(_bad, name)))


def _bad(character: str) -> bool:
    return not character.isprintable() and unicodedata.category(character) in ("Cc", "Cs")


class Channels:
    """The table of channels and addresses.

    *record* is called with (channel, addresses, open) whenever a registered channel changes; it logs the fact. If
    *create* is false, only configured channels exist. Users can create at most *limit*. *kept* returns those of some
    closed channels of which a message is kept.
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
        self.on_created: Callable[[str], None] = lambda _channel: None
        self._addresses: dict[str, dict[str, str]] = {}
        self._names: dict[str, dict[str, str]] = {protocol: {} for protocol in self._rules}
        self._registered: set[str] = set()
        self._closed: dict[str, None] = {}  # those that were checked by `_make_room` come last
        self._held: set[str] = set()
        self._reclaimable: set[str] = set()  # closed, and no message of theirs is kept: they do not count
        self._listed = SortedNames()  # registered and open, or held
        self._incomplete: set[str] = set()  # registered while an adapter was disabled that is enabled now
        self._complete: set[str] = set()  # registered, neither closed nor incomplete

    def channel(self, protocol: str, address: str) -> str:
        """The channel with *address* in *protocol*; raises `UnknownChannel` if there can be none."""
        name = self._names[protocol].get(address)
        if name is None:
            name = self._rules[protocol].channel(address)
            if name is None or not valid_name(name):
                raise UnknownChannel(address)
            if self._addresses.get(name, {}).get(protocol, address) != address:  # it has another address
                raise UnknownChannel(address)
        return name

    def address(self, protocol: str, channel: str) -> str | None:
        """The address of *channel* in *protocol*; None if none has been assigned yet."""
        address = self._addresses.get(channel, {}).get(protocol)
        return self._derive_address(protocol, channel) if address is None else address

    def owner(self, protocol: str, address: str) -> str | None:
        """The channel in this table that has *address* in *protocol*; None if there is none."""
        return self._names.get(protocol, {}).get(address)

    def addresses(self, channel: str) -> Mapping[str, str]:
        """The addresses of *channel*, by protocol."""
        return self._all_addresses(channel) | self._addresses.get(channel, {})

    @property
    def counted(self) -> int:
        """The number of channels that count towards the limit."""
        return len(self._addresses) - len(self._reclaimable)

    def exists(self, channel: str) -> bool:
        """Whether *channel* is registered and open."""
        return channel in self._registered and channel not in self._closed

    @property
    def count(self) -> int:
        """The number of channels that exist or are held."""
        return len(self._listed)

    def registered(self) -> list[str]:
        """The names of all channels that exist, sorted. This takes time in proportion to their number."""
        return [name for name in self._listed if self.exists(name)]

    def listed(self, after: str, limit: int) -> list[str]:
        """At most *limit* names after *after*, in order, of channels that exist or are held."""
        return self._listed.after(after, limit)

    def hold(self, channel: str) -> None:
        """Hold *channel* for its listeners; raises `UnknownChannel` if users cannot create it, or `TooManyChannels`."""
        self.reserve(channel)
        self._held.add(channel)
        self._listed.add(channel)

    def release(self, channel: str) -> None:
        """Release *channel*, which has no listeners any more; it is forgotten unless it is registered."""
        self._held.discard(channel)
        if not self.exists(channel):
            self._listed.discard(channel)
        if channel not in self._registered:
            for protocol, address in self._addresses.pop(channel, {}).items():
                del self._names[protocol][address]

    def register(self, channel: str) -> bool:
        """Register and open *channel*; nothing happens if it exists. Return whether it was created."""
        if channel in self._complete:
            return False
        self.reserve(channel)
        created = not self.exists(channel)
        self._register(channel)
        return created

    def configure(self, channel: str) -> None:
        """Register *channel* for the operator, even if users cannot create any, and beyond the limit."""
        if channel not in self._addresses:
            self.restore(channel, self._all_addresses(channel), registered=False)
        if not self.exists(channel) or channel in self._incomplete:
            self._register(channel)

    def assign(self, protocol: str, channel: str, address: str) -> None:
        """Register *channel* with an *address* that its adapter made; raises `ValueError` if it is taken."""
        if self._names[protocol].get(address, channel) != channel:
            raise ValueError(f"{address!r} is the address of {self._names[protocol][address]!r} already")
        if self.address(protocol, channel) == address and channel in self._registered:
            return
        self.reserve(channel)
        self._set_address(protocol, channel, address)
        self._register(channel)

    def pin(self, channel: str, addresses: Mapping[str, str]) -> None:
        """Register *channel* with *addresses*; raises `ValueError` if one is taken or differs from a former one."""
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
        """Close *channel* until it is used again; its addresses stay its own."""
        if self.exists(channel):
            self._closed[channel] = None
            self._complete.discard(channel)
            if channel not in self._held:
                self._listed.discard(channel)
                self._mark_reclaimable((channel,))
            self._record(channel, self._addresses[channel], False)

    def in_use(self, channel: str) -> bool:
        """Whether *channel* exists or is held."""
        return self.exists(channel) or channel in self._held

    def forget(self, channel: str) -> None:
        """Forget a closed *channel* that is not held: its name and its addresses become free."""
        for protocol, address in self._addresses.pop(channel, {}).items():
            del self._names[protocol][address]
        self._closed.pop(channel, None)
        for names in (self._registered, self._reclaimable, self._incomplete, self._complete):
            names.discard(channel)

    def restore(
        self, channel: str, addresses: Mapping[str, str], *, registered: bool = True, open: bool = True
    ) -> None:
        """Enter *channel* as the log has it or, if it is not *registered*, for the time that it is held."""
        self._addresses.setdefault(channel, {})
        for protocol, address in addresses.items():
            if protocol in self._names:  # an adapter may have been disabled
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
        """Enter *channel* in the table, if there is room; raises `UnknownChannel` or `TooManyChannels`."""
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
        """Raise `TooManyChannels` unless there is room for one more, perhaps by reclaiming closed channels."""
        if self.counted >= self._limit:
            some = list(islice(self._closed, RECLAIM_BATCH))
            for name in some:
                del self._closed[name]
                self._closed[name] = None
            self._mark_reclaimable([name for name in some if name not in self._held and name not in self._reclaimable])
        if self.counted >= self._limit:
            raise TooManyChannels(f"there are {self._limit:,} channels already (channels.limit)")

    def _mark_reclaimable(self, closed: Sequence[str]) -> None:
        """Mark those of *closed* channels of which no message is kept as reclaimable."""
        self._reclaimable.update(set(closed).difference(self._kept(closed)))

    def _register(self, channel: str) -> None:
        for protocol, address in self._all_addresses(channel).items():
            if protocol not in self._addresses[channel]:
                self._set_address(protocol, channel, address)
        created = not self.exists(channel)
        self._registered.add(channel)
        self._listed.add(channel)
        self._closed.pop(channel, None)
        self._reclaimable.discard(channel)
        self._incomplete.discard(channel)
        self._complete.add(channel)
        self._record(channel, dict(self._addresses[channel]), True)
        if created:
            self.on_created(channel)

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
