"""Peer numbers, and the durable identities, which keep their number.

Every connection has a number; a durable identity (an Arbor author, an Ethereum address, an API key) has one of its own
that it keeps across restarts. Numbers are allocated in blocks: a block is a fact in the log before its first number is
used, so that no number is ever used twice.
"""

from __future__ import annotations

from collections.abc import Callable

from .bounded_maps import BoundedMap
from .message import Peer

MAX_NAME = 255  # characters that are kept of a peer's name, as 100,000 names may be in memory
BLOCK = 1024  # numbers that are reserved at once
RESERVE = 256  # numbers left when the next block is reserved, so that it is on disk before it is needed
MAX_KNOWN = 100_000  # durable peers kept in memory; far more than can wait for the index

Lookup = Callable[[str, str], Peer | None]


class PeerRegistry:
    """Allocates peer numbers, and finds the durable peers that have one.

    *first* is the number after all blocks in the log. *reserve(first, count)* logs a block, *record(peer)* a durable
    peer; *find(protocol, identity)* and *find_number(number)* ask the index.
    """

    block = BLOCK
    reserve = RESERVE

    def __init__(
        self,
        first: int,
        reserve: Callable[[int, int], None],
        record: Callable[[Peer], None],
        find: Lookup,
        find_number: Callable[[int], Peer | None],
    ) -> None:
        self._next = self._end = self._free = first  # the number after all blocks is free
        self._reserve_block = reserve
        self._record = record
        self._find = find
        self._find_number = find_number
        self._durable = BoundedMap[tuple[str, str], Peer](MAX_KNOWN, self._forget)
        self._numbers: dict[int, Peer] = {}

    @property
    def free(self) -> int:
        """The number after all blocks, of this gateway and others: no peer has this number or a higher one yet."""
        return self._free

    def connection(self, protocol: str) -> Peer:
        """The peer of a new connection; its number is never used again."""
        return Peer(self._number(), protocol)

    def identity(self, protocol: str, identity: str, name: str | None = None) -> Peer:
        """The durable peer of *identity*, created when it is new; a new *name*, cut to `MAX_NAME`, replaces the old."""
        name = name and name[:MAX_NAME]
        peer = self.find(protocol, identity)
        if peer is None:
            peer = Peer(self._number(), protocol, identity, name)
        elif name is None or name == peer.name:
            return peer
        else:
            peer = Peer(peer.number, protocol, identity, name)
        self._record(peer)  # unless another gateway accepts now
        self._remember(peer)
        return peer

    def find(self, protocol: str, identity: str) -> Peer | None:
        """The durable peer of *identity*; None if it has none yet."""
        peer = self._durable.get((protocol, identity))
        if peer is None and (peer := self._find(protocol, identity)) is not None:
            self._remember(peer)
        return peer

    def with_number(self, number: int) -> Peer | None:
        """The durable peer with *number*; None if there is none."""
        return self._numbers.get(number) or self._find_number(number)

    def learn(self, peer: Peer) -> None:
        """Remember a durable *peer* that another gateway recorded."""
        self._remember(peer)

    def skip(self, end: int) -> None:
        """Never allocate a number below *end* from now on, except those left in this gateway's own block."""
        self._free = max(self._free, end)

    def forget(self, protocol: str, identity: str) -> None:
        """Forget the durable peer of *identity*, which gets another number if it comes back."""
        if (peer := self._durable.pop((protocol, identity))) is not None:
            self._numbers.pop(peer.number, None)

    def _remember(self, peer: Peer) -> None:
        assert peer.identity is not None
        self._durable[peer.protocol, peer.identity] = self._numbers[peer.number] = peer

    def _forget(self, _identity: tuple[str, str], peer: Peer) -> None:
        del self._numbers[peer.number]

    def _number(self) -> int:
        if self._end - self._next <= (self.reserve if self._end == self._free else 0):
            self.top_up()
        number = self._next
        self._next += 1
        return number

    def top_up(self, left: int | None = None) -> None:
        """Reserve the next block if no more than *left* numbers are left."""
        if left is not None and self._end - self._next > left:
            return
        first = self._end if self._end == self._free else self._free
        self._reserve_block(first, self.block)
        if first != self._end:  # the numbers after the own ones are another gateway's
            self._next = first
        self._end = self._free = first + self.block
