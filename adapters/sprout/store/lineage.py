"""Decides whether a node may be offered: only with all of its ancestors, since it cannot be verified otherwise.

A node is complete while it and all of its ancestors are held and have not expired. An incomplete node is offered to
nobody in Arbor, neither as history nor live: the reference removes a whole subtree when it purges a node, and its
clients stop at the first node that they cannot verify. While no node has ever expired, been retired or been damaged,
all nodes are complete and nothing is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from adapters.sprout.forest.forest import is_node_id
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import Unavailable
from gateway.core.message import Message
from gateway.storage.record import Entry, Fact

from .peek import conversation_of, expiration_of
from .store import Store
from .tables import NAME, REPLY, NodeInfo

MAX_CHAINS: Final = 1 << 15  # nodes whose ancestry is cached, about 250 bytes each
MAX_CLIMB: Final = 256  # nodes that are looked up in one step of the loop, some 10 ms
STEPS: Final = 16  # nodes per turn of the rest, as many as of an answer
NEVER: Final = 1 << 62  # ms; when most nodes expire
UNKNOWN_ID: Final = "?"  # the missing node has no id that could be requested


class Chain(NamedTuple):
    """A summary of a node and all of its ancestors.

    *oldest* is the lowest sequence among them that retention can remove, *until* is when the first of them expires
    (ms), *missing* is the id of the nearest one that is not held; empty if all are held.
    """

    oldest: int = NEVER
    until: int = NEVER
    missing: str = ""


_COMPLETE: Final = Chain()
_NONE: Final[Mapping[int, Chain]] = MappingProxyType({})


class Lineage:
    """Follows and caches the ancestry of nodes; *clock* gives ms, *post* calls in a later turn."""

    def __init__(self, store: Store, clock: Callable[[], int], post: Callable[[Callable[[], None]], None]) -> None:
        self._store = store
        self._clock = clock
        self._post = post
        self._chains = BoundedMap[int, Chain](MAX_CHAINS)
        self._provisional: dict[int, Chain] = {}  # likewise, by their conversations alone, until the rest is known
        self._missing: set[str] = set()  # ids that are missing from some of the chains

    def is_complete(self, seq: int, time: int | None = None) -> bool:
        """Whether the node at *seq* may be offered at *time* (ms; None for now)."""
        return self._is_whole(self._chain(seq), time)

    def completeness(self, seq: int) -> Generator[None, None, bool]:
        """The same as a generator that yields before each lookup in the log."""
        chain = yield from self._climb(seq)
        return self._is_whole(chain)

    def missing(self, seq: int) -> str:
        """The id of the missing ancestor of the node at *seq*; empty if all are held, expired or not."""
        return self._chain(seq).missing

    def node_added(self, id: str) -> None:
        """Drop what is cached of nodes that lacked the node *id*, which is held from now on."""
        if id in self._missing:
            self._missing.clear()
            self._chains.clear()

    def _is_whole(self, chain: Chain, time: int | None = None) -> bool:
        return not chain.missing and chain.until > (self._clock() if time is None else time)

    def _chain(self, seq: int) -> Chain:
        """The chain of the node at *seq*; provisional, by its conversation alone, if the node is very deep."""
        climb = self._climb(seq, self._provisional)
        for _ in range(MAX_CLIMB):
            try:
                next(climb)
            except StopIteration as end:
                chain: Chain = end.value
                return chain
        root = _root(self._store.entry(seq))
        self._provisional[seq] = Chain(seq) if root is None else self._provisional_chain(seq, root)
        self._post(partial(self._finish_climb, self._climb(seq)))
        return self._provisional[seq]

    def _finish_climb(self, climb: Generator[None, None, Chain]) -> None:
        """Finish *climb*, a few steps in each turn; then drop the provisional chains."""
        with suppress(Unavailable):
            for _ in range(STEPS):
                if next(climb, self) is self:
                    break
            else:
                self._post(partial(self._finish_climb, climb))
                return
        self._provisional.clear()

    def _provisional_chain(self, seq: int, root: str) -> Chain:
        """The chain that the node at *seq* has if only the conversation *root* counts."""
        at = self._store.seq(root)
        own = None if at is None else _own_chain(self._store.entry(at))
        return _broken_chain(root) if own is None else Chain(min(seq, own.oldest), own.until)

    def _climb(self, seq: int, judged: Mapping[int, Chain] = _NONE) -> Generator[None, None, Chain]:
        """Follow the ancestors of the node at *seq* up to one whose chain is known, and cache the chains of all.

        A *judged*, provisional chain counts as known, but nothing that follows from it is cached.
        """
        if not self._store.incomplete:
            return _COMPLETE
        passed: list[tuple[int, Chain]] = []
        info, name, note = self._store.info(seq), "", True
        while True:
            chain = self._known(info, name)
            if chain is None and info is not None and info.seq in judged:
                chain, note = judged[info.seq], False
            if chain is not None:
                break
            assert info is not None
            yield
            own = _own_chain(self._store.entry(info.seq))
            if own is None:
                chain = _broken_chain(name)
                break
            passed.append((info.seq, own))
            name = self._store.parent_name(info) if info.type == REPLY else ""
            if not name:
                chain = _COMPLETE
                break
            info = self._store.parent_of(info)
        if chain.missing:
            self._missing.add(chain.missing)
        for each, own in reversed(passed):
            chain = Chain(min(own.oldest, chain.oldest), min(own.until, chain.until), chain.missing)
            if note:
                self._keep(each, chain)
        return chain

    def _known(self, info: NodeInfo | None, name: str) -> Chain | None:
        """The cached chain of the node *info*, called *name*; None if there is none."""
        if info is None:
            return _broken_chain(name)
        known = self._chains.get(info.seq)
        return known if known is not None and known.oldest >= self._store.first_kept else None

    def _keep(self, seq: int, chain: Chain) -> None:
        self._chains[seq] = chain


def _own_chain(entry: Entry | None) -> Chain | None:
    """The chain of the node in *entry* without its ancestors; None if it cannot be read."""
    if isinstance(entry, Fact):
        return Chain(until=_expiry(entry.fields["wire"].encode()))
    if entry is None:
        return None
    is_node = entry.protocol == NAME and entry.wire is not None
    return Chain(entry.seq, _expiry(entry.wire or b"") if is_node else NEVER)


def _expiry(wire: bytes) -> int:
    expires = expiration_of(wire)
    return NEVER if expires is None else expires


def _root(entry: Entry | None) -> str | None:
    """The conversation that the node in *entry* names; None if it names none."""
    if isinstance(entry, Message) and entry.protocol == NAME and entry.wire is not None:
        return conversation_of(entry.wire)
    return None


def _broken_chain(name: str) -> Chain:
    return Chain(missing=name if is_node_id(name) else UNKNOWN_ID)
