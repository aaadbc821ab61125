"""Finds nodes in the log: by id, by type, below a node, in a community.

The index of records answers which messages are newest; `tables` has the rest. Nodes that are logged and not in the
tables yet are found in `unindexed`, as the rows that the index will write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, Final

from adapters.sprout.forest.canonical import CANONICAL_PREFIX, canonical_id
from adapters.sprout.forest.forest import Node, Reply, created_of, decode
from adapters.sprout.forest.node_rules import offered_until
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import Unavailable
from gateway.core.message import Message
from gateway.storage.index import Index
from gateway.storage.index_queries import PAGE
from gateway.storage.index_schema import KnownId, Row
from gateway.storage.record import Entry, Fact

from .recent import RecentNodes
from .tables import (
    COMMUNITY,
    DAY_MS,
    DAY_PREFIX,
    IDENTITY,
    NAME,
    REPLY,
    NodeInfo,
    NodeOrder,
    message_info,
    parse_day_name,
    rows,
)
from .unindexed import UnindexedRows

MAX_WALK: Final = 1 << 13  # descendants of a reply deep in a thread that are looked up
MAX_INFOS: Final = 1 << 13  # cached, about 0.5 KiB each
_PRUNE: Final = 256  # added nodes between two looks at what the index has applied
_END: Final = 1 << 62  # beyond all times and sequences

BY_SEQ: Final = "SELECT * FROM sprout_nodes WHERE seq = ?"
BY_KEY: Final = "SELECT * FROM sprout_nodes WHERE key = ?"
EXPIRING: Final = "SELECT 1 FROM sprout_expiring LIMIT 1"
FORM: Final = "SELECT id FROM sprout_forms WHERE seq = ?"
MINTED: Final = "SELECT id FROM sprout_minted WHERE what = ?"
_PAGED: Final = " ({0}, seq) < (?, ?) ORDER BY {0} DESC, seq DESC LIMIT ?"
NEWEST: Final = {
    "type": "SELECT * FROM sprout_nodes WHERE type = ? AND" + _PAGED.format("created"),
    "channel": "SELECT created, seq, channel FROM sprout_nodes WHERE channel = ? AND" + _PAGED.format("created"),
    "root": "SELECT created, seq, channel FROM sprout_replies WHERE root = ? AND" + _PAGED.format("created"),
    "messages": "SELECT at, seq, channel FROM messages WHERE channel = ? AND" + _PAGED.format("at"),
    "all messages": "SELECT at, seq, channel FROM messages WHERE" + _PAGED.format("at"),
}
CHILDREN: Final = (
    "SELECT created, seq, channel, key FROM sprout_replies WHERE parent = ? AND seq > ? ORDER BY seq LIMIT ?"
)


class Store:
    """Finds nodes, and logs those that are not messages. `add_reply` tells it of every reply that is logged."""

    def __init__(self, index: Index, fact: Callable[[str, dict[str, Any]], Fact]) -> None:
        self._index = index
        self._fact = fact
        self._unindexed = UnindexedRows()
        self._infos = BoundedMap[int | str, NodeInfo](2 * MAX_INFOS)  # by sequence and by key
        self._until_prune = _PRUNE
        self._recent = RecentNodes(self._newest_time())
        self._has_canonical = index.has_id_beginning(CANONICAL_PREFIX)  # nearly never; else nothing is looked up
        self._expiring = bool(index.rows(EXPIRING))
        self.on_node: Callable[[str], object] = _nothing  # called with the id of every new node
        self.first_kept = index.first_kept  # retention has removed every message before it
        self.incomplete = False
        self.refresh()

    def refresh(self) -> None:
        """See what retention has removed, and whether any node or ancestor may be missing."""
        self.first_kept = self._index.first_kept
        self.incomplete = self._expiring or self._index.incomplete

    def log_entity(self, line: NodeLine, **more: Any) -> int:
        """Log a node that is not a message, unless it is held already; return its sequence."""
        seq = self.seq(line.id)
        if seq is None:
            wire = line.line.partition(b" ")[2].decode()
            seq = self._log("entity", {"native": {NAME: line.id}, "wire": wire, **more})
            self.add_entity(line.id, line.raw, seq)
        return seq

    def add_entity(self, id: str, raw: bytes, seq: int) -> None:
        """Add the node *id*, whose bytes are *raw* and which is logged at *seq*, so that it is found."""
        node = decode(raw)
        self._recent.add(id, seq, node.created)
        self._expires(node)
        self.on_node(id)
        if (canonical := canonical_id(id, node, raw)) != id:
            self.add_canonical(canonical, seq, node)

    def add_canonical(self, canonical: str, seq: int, node: Node) -> None:
        """Record the *canonical* id of the *node* at *seq*, whose own id is another."""
        self._has_canonical = True
        self._recent.add(CANONICAL_PREFIX + canonical, seq, node.created)

    def canonical_seq(self, canonical: str) -> int | None:
        """The sequence of a node with this *canonical* id and another id of its own; None if there is none."""
        return self.seq(CANONICAL_PREFIX + canonical) if self._has_canonical else None

    def seq_by_canonical(self, canonical: str) -> int | None:
        """The sequence of the node with this *canonical* id, whether it is its own id or not; None if there is none."""
        seq = self.seq(canonical)
        return self.canonical_seq(canonical) if seq is None else seq

    def log_form(self, seq: int, line: NodeLine) -> int:
        """Log that the message at *seq* is offered to Arbor as the node on *line*; return the fact's sequence."""
        self._recent.add(line.id, seq, created_of(line.raw))
        self.on_node(line.id)
        return self._log("form", {"of": seq, "native": {NAME: line.id}})

    def add_reply(self, message: Message, id: str, node: Reply) -> None:
        """Add the reply *node*, whose id is *id*, which is logged as *message*, so that it is found."""
        seq, key, channel, created = message.seq, message.id, message.channel, message.timestamp
        parent = message.parent or node.parent
        self._recent.add(id, seq, created)
        self._keep(NodeInfo(seq, REPLY, key, parent, channel, created, node.parent))
        self._expires(node)
        self.on_node(id)
        self.note(seq, ())

    def _expires(self, node: Node) -> None:
        if node.metadata.blob and offered_until(node) is not None:
            self._expiring = self.incomplete = True

    def note(self, seq: int, noted: Sequence[Row | KnownId]) -> None:
        """Remember the rows that the index will write for the record at *seq*."""
        self._unindexed.add(seq, noted)
        self._until_prune -= 1
        if not self._until_prune:
            self.prune()

    def forget(self, id: str, seq: int, what: str) -> None:
        """Forget the entity *id* at *seq*, minted for *what*, which leaves the log and has left the tables."""
        self._unindexed.forget(id, seq, what)
        self._recent.drop(id)
        for known in (seq, id):
            self._infos.pop(known)

    def prune(self) -> None:
        """Forget what the tables contain by now."""
        self._until_prune = _PRUNE
        try:
            applied = self._index.applied_seq
        except Unavailable:
            return
        self._recent.prune(applied)
        self._unindexed.prune(applied)

    # One node

    def seq(self, id: str) -> int | None:
        """The sequence of the node *id* in the log; None if it is not held."""
        if (recent := self._seq_of_recent(id)) is not None:
            return recent
        unindexed = self._unindexed.seq(id)
        return self._index.indexed_seq(id) if unindexed is None else unindexed

    def _seq_of_recent(self, id: str) -> int | None:
        recent = self._recent.seq(id)
        return recent if recent is None or self.is_kept(recent) else None

    def is_kept(self, seq: int) -> bool:
        """Whether the node at *seq* is still held: retention removes messages only."""
        return seq >= self.first_kept or self._entity_at(seq) is not None

    def _entity_at(self, seq: int) -> tuple[Any, ...] | None:
        return self._unindexed.row("sprout_nodes", seq) or self._index.one(BY_SEQ, (seq,))

    def lookup(self, id: str, created: int) -> int | None:
        """The same as `seq` for a node created at *created* (ms), mostly without a lookup in the tables."""
        recent = self._seq_of_recent(id)
        return self.seq(id) if recent is None and self._recent.may_be_older(created) else recent

    def entry(self, seq: int) -> Entry | None:
        """The record of the node at *seq*; None if it can no longer be read."""
        return self._index.entry(seq)

    def has(self, id: str) -> bool:
        """Whether the node *id* is in the log and its record can be read."""
        seq = self.seq(id)
        return seq is not None and self.entry(seq) is not None

    def info(self, seq: int) -> NodeInfo | None:
        """What is known of the node at *seq* without reading it; None if it is not held."""
        if (info := self._infos.get(seq)) is not None:
            return info
        row = self._entity_at(seq)
        return self._keep(NodeInfo(*row) if row is not None else self._message(seq))

    def info_by_key(self, key: str) -> NodeInfo | None:
        """The node that its children refer to as *key*; None if it is not held."""
        if (info := self._infos.get(key)) is not None and self.is_kept(info.seq):
            return info
        recent = self._seq_of_recent(key)
        if recent is None and (row := self._index.one(BY_KEY, (key,))) is not None:
            return self._keep(NodeInfo(*row))
        if recent is None and (found := self._index.find(key)) is not None:
            recent = found.seq
        return None if recent is None else self.info(recent)

    def parent_of(self, info: NodeInfo) -> NodeInfo | None:
        """The parent of the node *info*; None if it is not held, or not signed yet."""
        if info.below:
            seq = self.seq(info.below)
            return None if seq is None else self.info(seq)
        return self.info_by_key(self.parent_name(info))

    def parent_name(self, info: NodeInfo) -> str:
        """The id or key of the parent of the node *info*; empty if the parent is not signed yet."""
        if info.below or not info.parent.startswith(DAY_PREFIX):
            return info.below or info.parent
        return self.minted(info.parent) or ""

    def form_id(self, seq: int) -> str | None:
        """The node id under which the message at *seq* was offered to Arbor; None if it was not."""
        id: str | None = self._value("sprout_forms", seq, FORM)
        return id

    def minted(self, what: str) -> str | None:
        """The id of the node that the gateway minted for *what*; None if it has not."""
        id: str | None = self._value("sprout_minted", what, MINTED)
        return id

    # Many nodes

    def of_type(self, type: int, quantity: int) -> list[NodeInfo]:
        """The newest nodes of a type that are not messages, newest first."""
        found = dict.fromkeys(chain.from_iterable(self.pages_of_type(type, quantity)))
        return sorted(found, key=lambda info: info.order, reverse=True)[:quantity]

    def pages_of_type(self, type: int, quantity: int) -> Iterator[list[NodeInfo]]:
        """The same and perhaps some more, a page at a time: first what is not indexed yet, which may come twice."""
        if waiting := [NodeInfo(*row) for row in self._unindexed.nodes() if row[1] == type]:
            yield waiting
        last, left = (_END, _END), quantity
        while left > 0 and (page := self._index.rows(NEWEST["type"], (type, *last, min(left, PAGE)))):
            infos = [NodeInfo(*row) for row in page]
            yield infos
            last, left = infos[-1].order[:2], left - len(page)

    def in_channel(self, channel: str, quantity: int) -> list[NodeInfo]:
        """The newest nodes below the communities of *channel*, newest first."""
        infos = (self.info(where.seq) for where in self.newest(quantity, channel))
        return list(islice((info for info in infos if info is not None), quantity))

    def newest(self, hint: int, channel: str | None = None) -> Iterator[NodeOrder]:
        """The replies of *channel*, or of all channels, newest first; the caller needs about *hint* of them."""
        waiting = sorted((_where(message) for message in self._index.unapplied(channel)), reverse=True)
        if channel is None:
            messages = self._pages("all messages", (), hint)
            others: Iterable[NodeOrder] = (info.order for info in self.of_type(REPLY, hint))
        else:
            messages = self._pages("messages", (channel,), hint)
            others = self._entities(channel, hint)
        return _merged(waiting, messages, others)

    def thread(self, channel: str, names: Iterable[str], hint: int) -> Iterator[NodeOrder]:
        """The replies of the conversation with these *names*, newest first; the caller needs about *hint* of them."""
        unindexed = self._unindexed_replies(channel)
        parts: list[Iterable[NodeOrder]] = []
        for name in names:
            parts.append(sorted((_where_of(row) for row in unindexed if row[5] == name), reverse=True))
            parts.append(self._pages("root", (name,), hint))
            if name.startswith(DAY_PREFIX):
                parts.append(self._of_day(name))
        return _merged(*parts)

    def descendants(self, channel: str, key: str) -> Iterator[NodeOrder | None]:
        """The descendants of the reply *key*, newest first; at most `MAX_WALK` are looked up.

        It yields None for each lookup in the tables, before the first of them.
        """
        found: dict[int, NodeOrder] = {}
        keys, left = {key}, [(key, 0)]
        while left and len(found) < MAX_WALK:
            parent, after = left.pop()
            page = self._index.rows(CHILDREN, (parent, after, PAGE))
            if len(page) == PAGE:
                left.append((parent, page[-1][1]))
            for created, seq, where, child in page:
                found[seq] = NodeOrder(created, seq, where)
                keys.add(child)
                left.append((child, 0))
            yield None
        for row in self._unindexed_replies(channel)[:MAX_WALK]:  # parents before children
            if row[2] in keys:
                keys.add(row[1])
                found[row[0]] = _where_of(row)
        yield from sorted(found.values(), reverse=True)

    def _unindexed_replies(self, channel: str) -> list[tuple[Any, ...]]:
        """The rows of replies of *channel* that may not be in the tables yet, in the order of the log."""
        return self._unindexed.replies(self._index.unapplied(channel))

    def _entities(self, channel: str, hint: int) -> Iterator[NodeOrder]:
        unindexed = [NodeInfo(*row).order for row in self._unindexed.nodes() if row[4] == channel]
        pages = self._pages("channel", (channel,), hint)
        return _merged(sorted(unindexed, reverse=True), pages) if unindexed else pages

    def _of_day(self, name: str) -> Iterator[NodeOrder]:
        """The messages of other protocols that stand directly below the conversation of a day."""
        _, since, channel = parse_day_name(name)
        for message in islice(self._index.newest(channel, since, since + DAY_MS), MAX_WALK):
            info = message_info(message) if message.protocol != NAME else None
            if info is not None and info.parent == name:
                yield info.order
            else:
                yield _where(message)._replace(channel="")  # unreadable to everybody: it is skipped

    def _pages(self, question: str, values: tuple[Any, ...], hint: int) -> Iterator[NodeOrder]:
        """The rows of one of the queries in `NEWEST`, page by page."""
        last, size = (_END, _END), max(1, min(hint, PAGE))
        while page := self._index.rows(NEWEST[question], (*values, *last, size)):
            yield from map(NodeOrder._make, page)
            if len(page) < size:
                return
            last = page[-1][:2]

    def _message(self, seq: int) -> NodeInfo | None:
        entry = self._index.entry(seq)
        return message_info(entry) if isinstance(entry, Message) else None

    def _keep(self, info: NodeInfo | None) -> NodeInfo | None:
        if info is not None:
            self._infos[info.seq] = self._infos[info.key] = info
        return info

    def _log(self, kind: str, fields: dict[str, Any]) -> int:
        fact = self._fact(kind, {"protocol": NAME, **fields})
        self.note(fact.seq, [*rows((fact,))])
        return fact.seq

    def _newest_time(self) -> int:
        """The creation time of the newest node that is held (ms); 0 if there is none."""
        entities = [info.created for type in (IDENTITY, COMMUNITY) for info in self.of_type(type, 1)]
        return max([*entities, *(where.created for where in islice(self.newest(1), 1))], default=0)

    def _value(self, table: str, key: Any, sql: str) -> Any:
        unindexed = self._unindexed.row(table, key)
        if unindexed is not None:
            return unindexed[1]
        row = self._index.one(sql, (key,))
        return None if row is None else row[0]


def _where(message: Message) -> NodeOrder:
    return NodeOrder(message.timestamp, message.seq, message.channel)


def _where_of(row: tuple[Any, ...]) -> NodeOrder:
    """The order of a row of `sprout_replies`."""
    return NodeOrder(row[4], row[0], row[3])


def _merged(*parts: Iterable[NodeOrder]) -> Iterator[NodeOrder]:
    """The union of *parts*, all newest first, without duplicates."""
    last = None
    for where in merge(*parts, reverse=True):
        if where != last:
            yield where
        last = where


def _nothing(_id: str) -> None:
    """Do nothing."""
