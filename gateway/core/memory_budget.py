"""One memory budget for all that is kept for peers: unfinished messages, bodies, and what waits for slow readers.

Each connection has limits of its own; this is the limit for all of them together. An object that keeps memory for a
peer is a `Holder`, and is asked for its size when that can matter: after every few megabytes that were read, and once a
second. Beyond the limit, the network that holds most loses its largest holder, and so on until an eighth of the budget
is free.

Asking ten thousand connections takes 75 ms. So many are asked a few at a time; only if they seem to hold too much are
all asked at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

AUDITS_PER_BUDGET = 16  # an audit follows whenever this part of the budget was read
MAX_AUDIT_STEP = 16 << 20  # bytes that are read between two audits at most
FEW = 256  # holders that are asked at once, which takes 2 ms
SLICE = 64  # holders that are asked in one turn of the loop if there are more


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


class MemoryBudget:
    """Keeps all holders together below *limit* bytes; *on_released* is called with each that was released."""

    def __init__(self, limit: int, on_released: Callable[[Holder, int], None] = lambda _holder, _bytes: None) -> None:
        self.set_limit(limit)
        self._on_released = on_released
        self.post: Callable[[Callable[[], None]], None] | None = None  # runs a call in a later turn of the loop
        self._holders: dict[Holder, None] = {}
        self._read = 0
        self._estimate: Iterator[None] | None = None  # that is under way

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
        if self._read >= self._step * (1 if self._estimate is None else 2):
            self.audit_soon()

    @property
    def held(self) -> int:
        """The bytes that are held now, by all."""
        return sum(holder.held_size for holder in self._holders)

    def audit_soon(self) -> None:
        """Audit at once; or, if there are many holders, once their sizes were added up in several turns of the loop."""
        if self.post is None or len(self._holders) <= FEW or self._read >= 2 * self._step:
            self.audit()
        elif self._estimate is None:
            self._read = 0
            self._estimate = self._add_up()
            self._continue()

    def _continue(self) -> None:
        if self._estimate is not None and next(self._estimate, self) is None:
            assert self.post is not None
            self.post(self._continue)

    def _add_up(self) -> Iterator[None]:
        """Ask for the sizes; yield after each slice, and audit if they are too much with what was read meanwhile."""
        held = 0
        for count, holder in enumerate(list(self._holders), 1):
            held += holder.held_size if holder in self._holders else 0
            if not count % SLICE:
                yield
        self._estimate = None
        if held + self._read > self.limit:
            self.audit()

    def audit(self) -> None:
        """Ask all holders for their sizes, and release the largest until there is room again."""
        self._read, self._estimate = 0, None
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
