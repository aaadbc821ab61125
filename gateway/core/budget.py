"""One memory budget for all that is kept for peers: unfinished messages, bodies, and what waits for slow readers.

Each connection has limits of its own; this is the limit for all of them together. An object that keeps memory for a
peer is a `Holder`, and is asked for its size when that can matter: after every few megabytes that were read, and once a
second. Beyond the limit, the network that holds most loses its largest holder, and so on until an eighth of the budget
is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

AUDITS_PER_BUDGET = 16  # an audit follows whenever this part of the budget was read
MAX_AUDIT_STEP = 16 << 20  # bytes that are read between two audits at most


class Holder(Protocol):
    """An object that keeps memory for one peer."""

    @property
    def network(self) -> str:
        """The network of the peer; see `gateway.core.networks`."""

    @property
    def held_size(self) -> int:
        """The bytes that are kept for the peer."""

    def release_memory(self) -> None:
        """Discard them, and disconnect the peer."""


class Budget:
    """Keeps all holders together below *limit* bytes; *on_released* is called with each that was released."""

    def __init__(self, limit: int, on_released: Callable[[Holder, int], None] = lambda _holder, _bytes: None) -> None:
        self.set_limit(limit)
        self._on_released = on_released
        self._holders: dict[Holder, None] = {}
        self._read = 0

    def set_limit(self, limit: int) -> None:
        """Set the *limit* (bytes) for all holders together, which the next audit enforces."""
        self.limit = limit
        self._step = min(limit // AUDITS_PER_BUDGET, MAX_AUDIT_STEP)

    def enter(self, holder: Holder) -> None:
        """Add *holder* to those that are audited."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Remove *holder*, which keeps nothing any more."""
        self._holders.pop(holder, None)

    def record_read(self, size: int) -> None:
        """Record *size* bytes that were read, and that some holder may keep; perhaps audit."""
        self._read += size
        if self._read >= self._step:
            self.audit()

    @property
    def held(self) -> int:
        """The bytes that are held now, by all."""
        return sum(holder.held_size for holder in self._holders)

    def audit(self) -> None:
        """Ask all holders for their sizes, and release the largest until there is room again."""
        self._read = 0
        held = [(holder.held_size, holder) for holder in self._holders]
        excess = sum(size for size, _ in held) - self.limit
        if excess <= 0:
            return
        excess += self.limit // 8
        networks: defaultdict[str, list[tuple[int, Holder]]] = defaultdict(list)
        for size, holder in sorted(held, key=lambda each: each[0]):
            networks[holder.network].append((size, holder))
        totals = {network: sum(size for size, _ in theirs) for network, theirs in networks.items()}
        while excess > 0:
            network = max(totals, key=lambda each: totals[each])
            size, holder = networks[network].pop()
            totals[network] -= size
            excess -= size
            self.leave(holder)
            holder.release_memory()
            self._on_released(holder, size)
