"""The tables of Sprout in the index, and the rows that a record of the log adds to them.

A node is an `entity` fact (identities, communities, the conversations that the gateway opens) or a message: a reply
that an Arbor author signed, or a message of another protocol, whose node may not be signed yet. The latter has no node
id, so the key of a message is its canonical message id (`NodeInfo.key`), that of an entity its node id.

The tables hold only what the index does not know of messages: entities, and the thread of each reply that is deep in
one. Each row with a `seq` is deleted with that record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from adapters.sprout.forest.canonical import CANONICAL_PREFIX, canonical_id
from adapters.sprout.forest.forest import decode, node_id
from adapters.sprout.forest.node_rules import offered_until
from gateway.core.message import Message
from gateway.storage.index_schema import KnownId, Row
from gateway.storage.record import Entry, Fact, decode_base64url

from .peek import conversation_of, expiration_of, parent_of

NAME: Final = "sprout"
IDENTITY, COMMUNITY, REPLY = range(3)
MAX_NODE_TIME: Final = ((1 << 32) - 1) * 1000  # ms; the last second that an OpenPGP signature can be dated at
DAY_PREFIX: Final = "day "  # the prefix of the names of conversations that the gateway opens
DAY_MS: Final = 86_400_000  # in a day

TABLES: Final = """
CREATE TABLE sprout_nodes (
    seq INTEGER PRIMARY KEY, type INTEGER NOT NULL, key TEXT NOT NULL, parent TEXT NOT NULL,
    channel TEXT NOT NULL, created INTEGER NOT NULL
);
CREATE INDEX sprout_nodes_key ON sprout_nodes (key);
CREATE INDEX sprout_nodes_type ON sprout_nodes (type, created, seq);
CREATE INDEX sprout_nodes_channel ON sprout_nodes (channel, created, seq);
CREATE TABLE sprout_replies (
    seq INTEGER PRIMARY KEY, key TEXT NOT NULL, parent TEXT NOT NULL,
    channel TEXT NOT NULL, created INTEGER NOT NULL, root TEXT NOT NULL
);
CREATE INDEX sprout_replies_parent ON sprout_replies (parent);
CREATE INDEX sprout_replies_root ON sprout_replies (root, created, seq);
CREATE TABLE sprout_expiring (seq INTEGER PRIMARY KEY);
CREATE TABLE sprout_forms (seq INTEGER PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE sprout_minted (what TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID;
"""
TABLES_BY_RECORD: Final = ("sprout_replies", "sprout_expiring", "sprout_forms", "sprout_nodes")


class NodeOrder(NamedTuple):
    """The creation time of a node (ms), its sequence, and its channel; nodes are ordered by these, oldest first."""

    created: int
    seq: int
    channel: str


class NodeInfo(NamedTuple):
    """What is known of a node without reading it. *created* is in ms.

    *key* and *parent* name a message by its canonical message id. *parent_id* is the parent's node id in a reply by an
    Arbor author: that node may be a copy of the parent, or have come back under another id.
    """

    seq: int
    type: int
    key: str
    parent: str
    channel: str
    created: int
    below: str = ""

    @property
    def order(self) -> NodeOrder:
        """The sort key of the node."""
        return NodeOrder(self.created, self.seq, self.channel)


def node_time(timestamp: int) -> int:
    """The creation time of the node for a message of another protocol: its *timestamp* (ms) in the range of nodes."""
    return min(max(timestamp, 0), MAX_NODE_TIME)


def day_name(channel: str, created: int) -> str:
    """The name of the conversation that the gateway mints for *channel* and the UTC day of *created* (ms)."""
    return f"{DAY_PREFIX}{_date(created // DAY_MS)} {channel}"


def parse_day_name(name: str) -> tuple[str, int, str]:
    """Parse the result of `day_name`: the date, the beginning of the day (ms), and the channel."""
    _, date, channel = name.split(" ", 2)
    return date, int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1000, channel


@lru_cache(16)
def _date(day: int) -> str:
    """The ISO date of the *day*-th day since 1970."""
    return datetime.fromtimestamp(day * DAY_MS // 1000, UTC).date().isoformat()


def rows(entries: Sequence[Entry]) -> Iterator[Row | KnownId]:
    """The rows that *entries* add to the tables, and the ids of nodes."""
    for entry in entries:
        if isinstance(entry, Message):
            if entry.protocol != NAME and not entry.refs.get(NAME):
                continue  # true of nearly all
            if entry.protocol == NAME and entry.wire is not None and expiration_of(entry.wire) is not None:
                yield Row("sprout_expiring", (entry.seq,))
            root = _root(entry)
            if root is not None and (info := message_info(entry)) is not None:
                yield Row("sprout_replies", (info.seq, info.key, info.parent, info.channel, info.created, root))
        elif entry.protocol == NAME and entry.kind == "entity":
            yield from _entity(entry)
        elif entry.protocol == NAME and entry.kind == "form":
            yield Row("sprout_forms", (entry.fields["of"], entry.fields["native"][NAME]))
            yield KnownId(entry.fields["native"][NAME], entry.fields["of"])


def _entity(fact: Fact) -> Iterator[Row | KnownId]:
    fields = fact.fields
    raw = decode_base64url(fields["wire"])
    node, id = decode(raw), node_id(raw)
    yield Row("sprout_nodes", (fact.seq, raw[2], id, node.parent, fields.get("channel", ""), node.created))
    yield KnownId(id, fact.seq)
    if offered_until(node) is not None:
        yield Row("sprout_expiring", (fact.seq,))
    if (canonical := canonical_id(id, node, raw)) != id:
        yield KnownId(CANONICAL_PREFIX + canonical, fact.seq)
    if (what := fields.get("what")) is not None:
        yield Row("sprout_minted", (what, id))


def _root(message: Message) -> str | None:
    """The conversation of a deep reply; None for a reply that opens one, or that stands below that of a day."""
    if message.protocol == NAME and message.wire is not None:
        return conversation_of(message.wire)
    ref = message.refs.get(NAME)
    return ref.get("conversation") if ref else None


def message_info(message: Message) -> NodeInfo | None:
    """The position and keys of *message* in the forest; None if it is not offered to Arbor."""
    if message.protocol == NAME and message.wire is not None:
        parent_id = parent_of(message.wire)
        key, parent = message.id, message.parent or parent_id
        return NodeInfo(message.seq, REPLY, key, parent, message.channel, message.timestamp, parent_id)
    ref = message.refs.get(NAME)
    if ref is None:
        return None
    created = node_time(message.timestamp)
    parent = ref.get("parent") or day_name(message.channel, created)
    return NodeInfo(message.seq, REPLY, message.id, parent, message.channel, created)
