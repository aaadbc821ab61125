"""What is read of the forest: the answers to `list`, `query`, `ancestry` and `leaves_of`, as lines.

A peer gets what it may read, and nothing tells it of the rest. Lines come one by one, those that matter most first, and
None where a step found nothing to show: each step takes little, so that whoever asks can stop and go on later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from adapters.sprout.store.tables import COMMUNITY, IDENTITY, REPLY, Spot, Where
from gateway.core.bus import Bus
from gateway.core.session import Session
from gateway.storage.record import Fact

from .answers import Found
from .nodes import Nodes
from .rights import Rights

MAX_PASSED: Final = 4096  # nodes that an answer passes over because the peer may not read them

Lines = Iterator[Found | None]


class Reader:
    """Finds nodes for those who ask; the lines of some may still be being made."""

    def __init__(self, bus: Bus, nodes: Nodes, rights: Rights) -> None:
        self._bus = bus
        self._nodes = nodes
        self._rights = rights
        self._store = nodes.store
        self._lineage = nodes.lineage

    def newest(self, asker: Session, type: int, quantity: int) -> Lines:
        """The newest nodes of a type, newest first."""
        self._store.look()
        if type == REPLY:
            return self._lines_at(asker, self._store.newest(quantity), quantity)
        return self._lines_of(asker, self._store.of_type(type, quantity) if type < REPLY else ())

    def held(self, asker: Session, ids: Iterable[str]) -> Lines:
        """The nodes with these ids, as far as they are held."""
        self._store.look()
        return self._lines_of(asker, map(self._nodes.spot, ids))

    def above(self, asker: Session, id: str) -> Callable[[int], Lines] | None:
        """Finds so many nodes above the node *id*, the deepest first; None where that is unknown."""
        spot = self._readable(asker, id)
        if spot is None:
            return None
        return lambda levels: self._lines_of(asker, self._above(spot, levels))

    def _readable(self, asker: Session, id: str) -> Spot | None:
        """Where the node *id* stands, if *asker* may be offered it."""
        self._store.look()
        spot = self._nodes.spot(id)
        readable = spot is not None and self._rights.may_read(asker, spot) and self._lineage.is_whole(spot.seq)
        return spot if readable else None

    def _above(self, spot: Spot | None, levels: int) -> Iterator[Spot]:
        while levels > 0 and spot is not None and (spot := self._store.above(spot)) is not None:
            levels -= 1
            yield spot

    def below(self, asker: Session, id: str, quantity: int) -> Lines:
        """The newest nodes that are, or are below, the node *id*; newest first."""
        spot = self._readable(asker, id)
        if spot is None:
            return iter(())
        places = _with(self._below(id, spot, quantity), spot.where)
        return self._lines_at(asker, places, quantity, own=spot.seq)

    def _below(self, id: str, spot: Spot, hint: int) -> Iterable[Where | None]:
        if spot.type == IDENTITY:
            return ()
        if spot.type == COMMUNITY:
            channel = self._nodes.channel(id)
            return () if channel is None else self._store.newest(hint, channel)
        node = self._nodes.node(id)
        if node is not None and node.depth == 1:
            return self._store.thread(spot.channel, self._names(id, spot), hint)
        return self._store.below(spot.channel, spot.key)

    def _names(self, id: str, spot: Spot) -> list[str]:
        """What replies may call a conversation: by its id, and by the name under which the gateway minted it."""
        entry = self._store.entry(spot.seq)
        name = entry.fields.get("what") if isinstance(entry, Fact) else None
        return [id] if name is None else [id, name]

    def _lines_of(self, asker: Session, spots: Iterable[Spot | None]) -> Lines:
        for spot in spots:
            if spot is None or not self._rights.may_read(asker, spot):
                yield None
            else:
                whole = yield from self._lineage.whole(spot.seq)
                yield self._found(spot.seq) if whole else None

    def _found(self, seq: int) -> Found | None:
        line = self._nodes.line_at(seq)
        return None if line is None else Found(seq, line)

    def _lines_at(self, asker: Session, places: Iterable[Where | None], quantity: int, own: int | None = None) -> Lines:
        """The lines of the first *quantity* replies that *asker* may read; the node at *own* it may."""
        may = partial(self._bus.allowed, asker.principal, "history")
        readable: dict[str, bool] = {"": False}
        passed = 0
        for place in places if quantity else ():
            if place is None:
                yield None
                continue
            _, seq, channel = place
            if channel not in readable:
                readable[channel] = may(channel)
            whole = (yield from self._lineage.whole(seq)) if readable[channel] or seq == own else False
            line = self._found(seq) if whole else None
            yield line
            quantity, passed = (quantity, passed + 1) if line is None else (quantity - 1, passed)
            if not quantity or passed > MAX_PASSED:
                return


def _with(places: Iterable[Where | None], own: Where) -> Iterator[Where | None]:
    """*places*, which are newest first, and *own* among them."""
    left: Where | None = own
    for place in places:
        if place is not None and left is not None and place < left:
            yield left
            left = None
        yield place
    if left is not None:
        yield left
