"""What the index keeps of Sprout: its tables, and the rows that a record of the log adds to them.

A node is an `entity` fact (identities, communities, the conversations that the gateway opens) or a message: a reply
that an Arbor author signed, or one from elsewhere, whose Arbor form may not have been made yet. The latter has no id,
so a message is known here by its canonical id (`Spot.key`), an entity by its node id.

Tables of its own has only what the index does not know of messages anyway (their channel, their time): entities, and
of each reply that is deep in a thread which thread that is. What retention takes out of the records goes from here
with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from adapters.sprout.forest.canonical import CANONICAL_PREFIX, canonical_id
from adapters.sprout.forest.forest import decode, node_id
from adapters.sprout.forest.validate import offered_until
from gateway.core.message import Message
from gateway.storage.record import Entry, Fact, decode_base64url
from gateway.storage.tables import Row

from .peek import conversation_of, expiration_of, parent_of

NAME: Final = "sprout"
IDENTITY, COMMUNITY, REPLY = range(3)
MAX_NODE_TIME: Final = ((1 << 32) - 1) * 1000  # ms; the last second that an OpenPGP signature can name
DAY_PREFIX: Final = "day "  # how the names of the gateway's conversations begin
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
CREATE INDEX sprout_records_at ON records (at, seq) WHERE channel IS NOT NULL;
CREATE TRIGGER sprout_retired AFTER DELETE ON records BEGIN
    DELETE FROM sprout_replies WHERE seq = OLD.seq;
    DELETE FROM sprout_expiring WHERE seq = OLD.seq;
    DELETE FROM sprout_forms WHERE seq = OLD.seq;
    DELETE FROM sprout_nodes WHERE seq = OLD.seq;
END;
"""


class NodeOrder(NamedTuple):
    """When a node is said to be made (ms), its sequence, and its channel; they are ordered by age."""

    created: int
    seq: int
    channel: str


class NodeInfo(NamedTuple):
    """What is known of a node without reading it. *created* is in ms.

    A message is known by its canonical id: *key*, and *parent* for what is below it. *below* is the node id of what a
    reply by an Arbor author stands below: the parent may be a copy of that message, or have come back under another id.
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
        """What nodes are ordered by."""
        return NodeOrder(self.created, self.seq, self.channel)


def node_time(timestamp: int) -> int:
    """When a node of a message from elsewhere is said to be made: its *timestamp* (ms), as far as a node can tell."""
    return min(max(timestamp, 0), MAX_NODE_TIME)


def day_name(channel: str, created: int) -> str:
    """What the conversation is called, among what the gateway mints, that *channel* has on the UTC day of *created*."""
    return f"{DAY_PREFIX}{_date(created // DAY_MS)} {channel}"


def parse_day_name(name: str) -> tuple[str, int, str]:
    """What `day_name` wrote: the date, when that day begins (ms), and the channel."""
    _, date, channel = name.split(" ", 2)
    return date, int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1000, channel


@lru_cache(16)
def _date(day: int) -> str:
    """The date of the *day*-th day since 1970."""
    return datetime.fromtimestamp(day * DAY_MS // 1000, UTC).date().isoformat()


def rows(entries: Sequence[Entry]) -> Iterator[Row]:
    """What *entries* add to the tables."""
    for entry in entries:
        if isinstance(entry, Message):
            if entry.protocol != NAME and not entry.refs.get(NAME):
                continue  # nearly always
            if entry.protocol == NAME and entry.wire is not None and expiration_of(entry.wire) is not None:
                yield Row("sprout_expiring", (entry.seq,))
            root = _root(entry)
            if root is not None and (info := message_info(entry)) is not None:
                yield Row("sprout_replies", (info.seq, info.key, info.parent, info.channel, info.created, root))
        elif entry.protocol == NAME and entry.kind == "entity":
            yield from _entity(entry)
        elif entry.protocol == NAME and entry.kind == "form":
            yield Row("sprout_forms", (entry.fields["of"], entry.fields["native"][NAME]))
            yield Row("ids", (entry.fields["native"][NAME], entry.fields["of"]))


def _entity(fact: Fact) -> Iterator[Row]:
    fields = fact.fields
    raw = decode_base64url(fields["wire"])
    node, id = decode(raw), node_id(raw)
    yield Row("sprout_nodes", (fact.seq, raw[2], id, node.parent, fields.get("channel", ""), node.created))
    yield Row("ids", (id, fact.seq))
    if offered_until(node) is not None:
        yield Row("sprout_expiring", (fact.seq,))
    if (canonical := canonical_id(id, node, raw)) != id:
        yield Row("ids", (CANONICAL_PREFIX + canonical, fact.seq))
    if (what := fields.get("what")) is not None:
        yield Row("sprout_minted", (what, id))


def _root(message: Message) -> str | None:
    """The conversation that a deep reply belongs to; None for what opens one, or stands below that of a day."""
    if message.protocol == NAME and message.wire is not None:
        return conversation_of(message.wire)
    ref = message.refs.get(NAME)
    return ref.get("conversation") if ref else None


def message_info(message: Message) -> NodeInfo | None:
    """Where *message* stands in the forest; None where Arbor does not get it."""
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
