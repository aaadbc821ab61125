"""One budget of memory for all that peers make the gateway keep: half messages, bodies, what waits for slow readers.

Each connection has limits of its own; this is the limit to all of them together. Whoever keeps something for a peer is
a `Holder` and is asked how much when that can matter: after every few megabytes that were read, and once a second. Over
the limit the network that holds most gives up its largest holder, and so on until an eighth of the budget is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

STEPS = 16  # parts of the budget; it is looked at after each that was read
LONGEST_STEP = 16 << 20  # bytes that such a part has at most


class Holder(Protocol):
    """Keeps something for one peer."""

    @property
    def network(self) -> str:
        """Where the peer is; see `gateway.core.networks`."""

    @property
    def held_size(self) -> int:
        """How many bytes are kept for the peer."""

    def release_memory(self) -> None:
        """Let go of them, and of the peer."""


class Budget:
    """Sees to it that all holders together hold at most *limit* bytes; *on_given_up* hears of each that had to go."""

    def __init__(self, limit: int, on_given_up: Callable[[Holder, int], None] = lambda _holder, _bytes: None) -> None:
        self.allow(limit)
        self._on_given_up = on_given_up
        self._holders: dict[Holder, None] = {}
        self._grown = 0

    def allow(self, limit: int) -> None:
        """All holders together may hold *limit* bytes from now on; who holds too much is found at the next audit."""
        self.limit = limit
        self._step = min(limit // STEPS, LONGEST_STEP)

    def enter(self, holder: Holder) -> None:
        """*holder* may keep something from now on."""
        self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """*holder* keeps nothing any more."""
        self._holders.pop(holder, None)

    def grew(self, size: int) -> None:
        """*size* bytes were read; somebody may keep them."""
        self._grown += size
        if self._grown >= self._step:
            self.audit()

    @property
    def held(self) -> int:
        """How many bytes are held now, by all."""
        return sum(holder.held_size for holder in self._holders)

    def audit(self) -> None:
        """Ask everybody, and let the largest holders go until there is room again."""
        self._grown = 0
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
            self._on_given_up(holder, size)
