"""Finds the nodes for responses to `list`, `query`, `ancestry` and `leaves_of`.

A peer gets the nodes that it may read, and learns nothing of others. Iterators yield one node at a time, in the
order that each method names, or None for a step that found no node. Each step is short, so that the caller can pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.store.tables import COMMUNITY, IDENTITY, REPLY, NodeInfo, NodeOrder
from gateway.storage.record import Fact

from .answers import FoundNode

MAX_PASSED: Final = 4096  # nodes that are skipped for one response: the peer may not read them, or they cannot be sent

FoundNodes = Iterator[FoundNode | None]


class NodeReader:
    """Finds nodes for requests; some lines may not be signed yet."""

    def __init__(self, nodes: NodeDirectory, rights: Rights) -> None:
        self._nodes = nodes
        self._rights = rights
        self._store = nodes.store
        self._lineage = nodes.lineage

    def newest(self, session: SproutConnection, type: int, quantity: int) -> FoundNodes:
        """The newest nodes of a type, newest first."""
        self._store.refresh()
        if type == REPLY:
            return self._lines_at(session, self._store.newest(quantity), quantity)
        return self._lines_of(session, self._store.of_type(type, quantity) if type < REPLY else ())

    def by_id(self, session: SproutConnection, ids: Iterable[str]) -> FoundNodes:
        """The nodes with these ids that are held."""
        self._store.refresh()
        return self._lines_of(session, map(self._nodes.info, ids))

    def ancestors(self, session: SproutConnection, id: str) -> Callable[[int], FoundNodes] | None:
        """A function that finds so many ancestors of the node *id*, deepest first; None if it may not be read."""
        info = self._readable(session, id)
        if info is None:
            return None
        return lambda levels: self._lines_of(session, self._ancestors(info, levels))

    def _readable(self, session: SproutConnection, id: str) -> NodeInfo | None:
        """What is known of the node *id*; None unless it may be offered to *session*."""
        self._store.refresh()
        info = self._nodes.info(id)
        readable = info is not None and self._rights.may_read(session, info) and self._lineage.is_complete(info.seq)
        return info if readable else None

    def _ancestors(self, info: NodeInfo | None, levels: int) -> Iterator[NodeInfo]:
        while levels > 0 and info is not None and (info := self._store.parent_of(info)) is not None:
            levels -= 1
            yield info

    def descendants(self, session: SproutConnection, id: str, quantity: int) -> FoundNodes:
        """The newest nodes among the node *id* and its descendants, newest first."""
        info = self._readable(session, id)
        if info is None:
            return iter(())
        places = _with(self._descendants(id, info, quantity), info.order)
        return self._lines_at(session, places, quantity, own=info.seq)

    def _descendants(self, id: str, info: NodeInfo, hint: int) -> Iterable[NodeOrder | None]:
        if info.type == IDENTITY:
            return ()
        if info.type == COMMUNITY:
            channel = self._nodes.channel(id)
            return () if channel is None else self._store.newest(hint, channel)
        node = self._nodes.node(id)
        if node is not None and node.depth == 1:
            return self._store.thread(info.channel, self._names(id, info), hint)
        return self._store.descendants(info.channel, info.key)

    def _names(self, id: str, info: NodeInfo) -> list[str]:
        """The names of the conversation *id* in its replies: its id, and the name for which the gateway made it."""
        entry = self._store.entry(info.seq)
        name = entry.fields.get("what") if isinstance(entry, Fact) else None
        return [id] if name is None else [id, name]

    def _lines_of(self, session: SproutConnection, infos: Iterable[NodeInfo | None]) -> FoundNodes:
        for info in infos:
            if info is None or not self._rights.may_read(session, info):
                yield None
            else:
                whole = yield from self._lineage.completeness(info.seq)
                yield self._found(info.seq) if whole else None

    def _found(self, seq: int) -> FoundNode | None:
        line = self._nodes.line_at(seq)
        return None if line is None else FoundNode(seq, line)

    def _lines_at(
        self, session: SproutConnection, places: Iterable[NodeOrder | None], quantity: int, own: int | None = None
    ) -> FoundNodes:
        """The first *quantity* replies at *places* that *session* may read; it may read the node at *own*."""
        may = partial(self._rights.allows, session, "history")
        readable: dict[str, bool] = {"": False}
        passed = 0
        for place in places if quantity else ():
            if place is None:
                yield None
                continue
            _, seq, channel = place
            if channel not in readable:
                readable[channel] = may(channel)
            whole = (yield from self._lineage.completeness(seq)) if readable[channel] or seq == own else False
            line = self._found(seq) if whole else None
            yield line
            quantity, passed = (quantity, passed + 1) if line is None else (quantity - 1, passed)
            if not quantity or passed > MAX_PASSED:
                return


def _with(places: Iterable[NodeOrder | None], own: NodeOrder) -> Iterator[NodeOrder | None]:
    """*places*, which are newest first, with *own* inserted in order."""
    left: NodeOrder | None = own
    for place in places:
        if place is not None and left is not None and place < left:
            yield left
            left = None
        yield place
    if left is not None:
        yield left
