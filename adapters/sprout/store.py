"""Where nodes stand in the log, and how they are found again: by id, by type, below a node, in a community.

A node is an `entity` fact (identities, communities, the conversations that the gateway opens) or a message: a reply
that an Arbor author signed, or one from elsewhere, whose Arbor form may not have been made yet. The latter has no id,
so a message is known here by its canonical id (`Spot.key`), an entity by its node id.

Tables of its own has only what Arbor brought and what the gateway minted for it. Messages from elsewhere cost nothing
here: the index knows their channel, their time and what they answer, and where they stand in the forest follows.
What is logged and not in the tables yet is kept here, in the very rows that the index will write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from gateway.errors import Unavailable
from gateway.index import Index
from gateway.lookup import PAGE
from gateway.message import Message
from gateway.record import Entry, Fact, binary, unbinary
from gateway.tables import Row

from .codec import NodeLine
from .forest import decode, node_id

NAME: Final = "sprout"
IDENTITY, COMMUNITY, REPLY = range(3)
MAX_WALK: Final = 1 << 14  # nodes below one node that are looked at; below a community only those that are asked for
MAX_MOMENT: Final = ((1 << 32) - 1) * 1000  # ms; the last second that an OpenPGP signature can name
DAY: Final = "day "  # how the names of the gateway's conversations begin
_DAY_MS: Final = 86_400_000
_PRUNE: Final = 256  # notes between two looks at what the index has applied

TABLES: Final = """
CREATE TABLE sprout_nodes (
    seq INTEGER PRIMARY KEY, type INTEGER NOT NULL, key TEXT NOT NULL, parent TEXT NOT NULL,
    channel TEXT NOT NULL, created INTEGER NOT NULL
);
CREATE INDEX sprout_nodes_key ON sprout_nodes (key);
CREATE INDEX sprout_nodes_type ON sprout_nodes (type, created, seq);
CREATE INDEX sprout_nodes_channel ON sprout_nodes (channel, created, seq);
CREATE INDEX sprout_nodes_parent ON sprout_nodes (parent);
CREATE TABLE sprout_forms (seq INTEGER PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE sprout_minted (what TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID;
"""

BY_SEQ: Final = "SELECT * FROM sprout_nodes WHERE seq = ?"
BY_KEY: Final = "SELECT * FROM sprout_nodes WHERE key = ?"
BY_ID: Final = "SELECT seq FROM ids WHERE id = ?"
FORM: Final = "SELECT id FROM sprout_forms WHERE seq = ?"
MINTED: Final = "SELECT id FROM sprout_minted WHERE what = ?"
NEWEST: Final = {
    column: f"SELECT * FROM sprout_nodes WHERE {column} = ? AND (created, seq) < (?, ?)"
    " ORDER BY created DESC, seq DESC LIMIT ?"
    for column in ("type", "channel")
}
CHILDREN: Final = "SELECT * FROM sprout_nodes WHERE parent = ? LIMIT ?"


class Spot(NamedTuple):
    """A row of `sprout_nodes`: what is known of a node without reading it. *created* is in ms."""

    seq: int
    type: int
    key: str
    parent: str
    channel: str
    created: int

    @property
    def age(self) -> tuple[int, int]:
        """What nodes are ordered by."""
        return self.created, self.seq


def moment(timestamp: int) -> int:
    """When a node of a message from elsewhere is said to be made: its *timestamp* (ms), as far as a node can tell."""
    return min(max(timestamp, 0), MAX_MOMENT)


def day_of(channel: str, created: int) -> str:
    """What the conversation is called, among what the gateway mints, that *channel* has on the UTC day of *created*."""
    return f"{DAY}{_date(created // _DAY_MS)} {channel}"


@lru_cache(16)
def _date(day: int) -> str:
    """The date of the *day*-th day since 1970."""
    return datetime.fromtimestamp(day * _DAY_MS // 1000, UTC).date().isoformat()


def rows(entry: Entry) -> Iterator[Row]:
    """What *entry* adds to the tables."""
    if isinstance(entry, Message):
        if entry.protocol == NAME and (spot := spot_of(entry)) is not None:
            yield Row("sprout_nodes", tuple(spot))
    elif entry.protocol == NAME and entry.kind == "entity":
        yield from _entity(entry)
    elif entry.protocol == NAME and entry.kind == "form":
        yield Row("sprout_forms", (entry.fields["of"], entry.fields["native"][NAME]))
        yield Row("ids", (entry.fields["native"][NAME], entry.fields["of"]))


def spot_of(message: Message) -> Spot | None:
    """Where *message* stands in the forest; None where Arbor does not get it."""
    if message.protocol == NAME and message.wire is not None:
        parent = message.parent or _parent_id(message.wire)
        return Spot(message.seq, REPLY, message.id, parent, message.channel, message.timestamp)
    ref = (message.refs or {}).get(NAME)
    if ref is None:
        return None
    created = moment(message.timestamp)
    parent = ref.get("parent") or day_of(message.channel, created)
    return Spot(message.seq, REPLY, message.id, parent, message.channel, created)


class Store:
    """Finds nodes, and logs those that are no messages. It is told of every message that is logged, by `note`."""

    def __init__(self, index: Index, fact: Callable[[str, dict[str, Any]], Fact]) -> None:
        self._index = index
        self._fact = fact
        self._noted: deque[tuple[int, Sequence[Row]]] = deque()
        self._fresh: dict[str, dict[Any, tuple[Any, ...]]] = {
            table: {} for table in ("sprout_nodes", "sprout_forms", "sprout_minted", "ids")
        }
        self._keys: dict[str, Spot] = {}
        self._until_prune = _PRUNE
        self._youngest = max(self._youngest_of(type) for type in (IDENTITY, COMMUNITY, REPLY))

    def entity(self, line: NodeLine, **more: Any) -> int:
        """Log a node that is no message, unless it is held already; where it stands."""
        seq = self.seq(line.id)
        if seq is None:
            wire = line.line.partition(b" ")[2].decode()
            seq = self._log("entity", {"native": {NAME: line.id}, "wire": wire, **more})
        return seq

    def shown(self, seq: int, id: str) -> None:
        """Log that the message at *seq* is shown to Arbor as the node *id*."""
        self._log("form", {"of": seq, "native": {NAME: id}})

    def note(self, entry: Entry) -> None:
        """*entry* is in the log, or will be in a moment: it is found from now on."""
        noted = [*rows(entry)]
        if isinstance(entry, Message) and entry.native is not None:
            noted.append(Row("ids", (entry.native[NAME], entry.seq)))  # the index itself writes it
        self.add(entry.seq, noted)

    def add(self, seq: int, noted: Sequence[Row]) -> None:
        """These rows come from the record at *seq*."""
        self._noted.append((seq, noted))
        for table, values in noted:
            self._fresh[table][values[0]] = values
            if table == "sprout_nodes":
                spot = Spot(*values)
                self._keys[spot.key] = spot
                self._youngest = max(self._youngest, spot.created)
        self._until_prune -= 1
        if not self._until_prune:
            self.prune()

    def prune(self) -> None:
        """Forget what the tables know by now."""
        self._until_prune = _PRUNE
        try:
            applied = self._index.applied_seq
        except Unavailable:
            return
        while self._noted and self._noted[0][0] <= applied:
            for table, values in self._noted.popleft()[1]:
                if self._fresh[table].get(values[0]) == values:
                    del self._fresh[table][values[0]]
                if table == "sprout_nodes":
                    self._keys.pop(values[2], None)

    # One node

    def seq(self, id: str) -> int | None:
        """Where the node *id* stands in the log."""
        seq: int | None = self._value("ids", id, BY_ID)
        return seq

    def lookup(self, id: str, created: int) -> int | None:
        """As `seq`, of a node made at *created* (ms): one that is newer than all that are held is none of them."""
        fresh = self._fresh["ids"].get(id)
        if fresh is None and created > self._youngest:
            return None
        return self.seq(id)

    def entry(self, seq: int) -> Entry | None:
        """The record of the node at *seq*; None where it cannot be read any more."""
        return self._index.entry(seq)

    def spot(self, seq: int) -> Spot | None:
        """What is known of the node at *seq*."""
        fresh = self._fresh["sprout_nodes"].get(seq)
        row = self._index.one(BY_SEQ, (seq,)) if fresh is None else fresh
        return Spot(*row) if row is not None else self._elsewhere(seq)

    def known_as(self, key: str) -> Spot | None:
        """The node that children name as *key*."""
        spot = self._keys.get(key)
        if spot is not None:
            return spot
        if (row := self._index.one(BY_KEY, (key,))) is not None:
            return Spot(*row)
        found = self._index.find(key)
        return None if found is None else self._elsewhere(found.seq)

    def _elsewhere(self, seq: int) -> Spot | None:
        entry = self._index.entry(seq)
        return spot_of(entry) if isinstance(entry, Message) else None

    def form(self, seq: int) -> str | None:
        """The id that the Arbor form of the message at *seq* has been shown under."""
        id: str | None = self._value("sprout_forms", seq, FORM)
        return id

    def minted(self, what: str) -> str | None:
        """The id of what the gateway has minted before."""
        id: str | None = self._value("sprout_minted", what, MINTED)
        return id

    # Many nodes

    def of_type(self, type: int, quantity: int) -> list[Spot]:
        """The newest nodes of a type, newest first."""
        found = self._newest("type", type, quantity, lambda spot: spot.type == type)
        if type == REPLY:
            found += filter(None, map(_from_elsewhere, self._index.latest(quantity)))
        return _youngest(found, quantity)

    def in_channel(self, channel: str, quantity: int) -> list[Spot]:
        """The newest nodes below the community that *channel* is, newest first."""
        found = self._newest("channel", channel, quantity, lambda spot: spot.channel == channel)
        found += filter(None, map(_from_elsewhere, islice(self._index.newest(channel), quantity)))
        return _youngest(found, quantity)

    def below(self, keys: Iterable[str], quantity: int) -> list[Spot]:
        """The newest nodes that are, or are below, those named *keys*, newest first; `MAX_WALK` are looked at."""
        names = deque(keys)
        found = {spot.seq: spot for spot in map(self.known_as, names) if spot is not None}
        while names and len(found) < MAX_WALK:
            for spot in self._children(names.popleft(), MAX_WALK - len(found)):
                if spot.seq not in found:
                    found[spot.seq] = spot
                    names.append(spot.key)
        return _youngest(found.values(), quantity)

    def _children(self, name: str, limit: int) -> Iterator[Spot]:
        """The nodes whose parent is called *name*."""
        self.prune()
        yield from (Spot(*values) for values in self._fresh["sprout_nodes"].values() if values[3] == name)
        yield from map(Spot._make, self._index.rows(CHILDREN, (name, limit)))
        if name.startswith(DAY):
            _, date, channel = name.split(" ", 2)
            since = int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1000
            messages: Iterable[Message] = islice(self._index.newest(channel, since, since + _DAY_MS), limit)
        else:
            messages = self._index.answers(name, limit)
        spots = map(_from_elsewhere, messages)
        yield from (spot for spot in spots if spot is not None and spot.parent == name)

    def _newest(self, column: str, value: Any, quantity: int, fits: Callable[[Spot], bool]) -> list[Spot]:
        self.prune()
        found = {spot for spot in map(Spot._make, self._fresh["sprout_nodes"].values()) if fits(spot)}
        last, left = (1 << 62, 1 << 62), quantity
        while left > 0 and (page := self._index.rows(NEWEST[column], (value, *last, min(left, PAGE)))):
            found.update(map(Spot._make, page))
            last, left = Spot(*page[-1]).age, left - len(page)
        return _youngest(found, quantity)

    def _log(self, kind: str, fields: dict[str, Any]) -> int:
        fact = self._fact(kind, {"protocol": NAME, **fields})
        self.note(fact)
        return fact.seq

    def _youngest_of(self, type: int) -> int:
        newest = self.of_type(type, 1)
        return newest[0].created if newest else 0

    def _value(self, table: str, key: Any, sql: str) -> Any:
        fresh = self._fresh[table].get(key)
        if fresh is not None:
            return fresh[1]
        row = self._index.one(sql, (key,))
        return None if row is None else row[0]


def _from_elsewhere(message: Message) -> Spot | None:
    return None if message.protocol == NAME else spot_of(message)


def _youngest(spots: Iterable[Spot], quantity: int) -> list[Spot]:
    return sorted(spots, key=lambda spot: spot.age, reverse=True)[:quantity]


def _entity(fact: Fact) -> Iterator[Row]:
    fields = fact.fields
    raw = unbinary(fields["wire"])
    node, id = decode(raw), node_id(raw)
    yield Row("sprout_nodes", (fact.seq, raw[2], id, node.parent, fields.get("channel", ""), node.created))
    yield Row("ids", (id, fact.seq))
    if (what := fields.get("what")) is not None:
        yield Row("sprout_minted", (what, id))


def _parent_id(wire: bytes) -> str:
    """The parent of a reply, whose bytes are *wire* in base64url: the hash behind the first six bytes."""
    return "SHA512_B32__" + binary(unbinary(wire[:52])[6:38]).decode()
