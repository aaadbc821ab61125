"""The publishers of each stream, and the foreign senders behind the gateway's addresses: tables of the index.

A row is deleted with the last stored message of its sender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from adapters.streamr.wire.ids import NAME, stream_of
from gateway.core.bounded_maps import BoundedMap
from gateway.core.message import Message
from gateway.storage.index_schema import Row

if TYPE_CHECKING:
    from gateway.storage.index_queries import Lookup
    from gateway.storage.index_schema import Statement
    from gateway.storage.record import Fact

MAX_SEEN = 65_536  # senders whose rows are known to be in the tables

# fmt: off
TABLE = """
CREATE TABLE streamr_publishers (
    stream TEXT, publisher TEXT, channel TEXT, sender INTEGER, PRIMARY KEY (stream, publisher, channel, sender)
) WITHOUT ROWID;
CREATE TABLE streamr_authors (address TEXT PRIMARY KEY, protocol TEXT, identity TEXT, number INTEGER) WITHOUT ROWID;
"""
SELECT_HAS_PUBLISHED = "SELECT 1 FROM streamr_publishers WHERE stream = ? AND publisher = ? LIMIT 1"
SELECT_FOREIGN_SENDER = "SELECT protocol, identity, number FROM streamr_authors WHERE address = ?"
SELECT_PUBLISHERS = "SELECT DISTINCT publisher FROM streamr_publishers WHERE stream = ? ORDER BY publisher LIMIT ?"
DELETE_UNUSED = (
    "DELETE FROM streamr_publishers WHERE NOT EXISTS (SELECT 1 FROM messages"
    " WHERE messages.channel = streamr_publishers.channel AND messages.sender = streamr_publishers.sender)",
    "DELETE FROM streamr_authors WHERE address NOT IN (SELECT publisher FROM streamr_publishers)",
)
# fmt: on


class Publishers:
    """Publishers as the index knows them. *address* returns the address that signs a message of another protocol.

    Addresses are in lower case.
    """

    def __init__(self, address: Callable[[Message], str]) -> None:
        self._address = address
        self._seen = BoundedMap[tuple[str, str, str, int], int](MAX_SEEN)

    def start(self, index: Lookup) -> None:
        """Use *index* from now on."""
        self._index = index

    def has_published(self, stream: str, address: str) -> bool:
        """Whether *address* has published on *stream*."""
        return self._index.one(SELECT_HAS_PUBLISHED, (stream, address)) is not None

    def addresses(self, stream: str, limit: int) -> list[str]:
        """The addresses that have published on *stream*, at most *limit*."""
        return [row[0] for row in self._index.rows(SELECT_PUBLISHERS, (stream, limit))]

    def foreign_sender(self, address: str) -> tuple[str, str | None, int] | None:
        """The protocol, identity and number of the sender behind the gateway's *address*; None if there is none."""
        found = self._index.one(SELECT_FOREIGN_SENDER, (address,))
        return None if found is None else (found[0], found[1], found[2])

    def sender_number(self, address: str) -> int | None:
        """The number of the sender for whom the gateway signs with *address*; None if there is none."""
        found = self.foreign_sender(address)
        return None if found is None else found[2]

    def rows(self, entries: Sequence[Message | Fact]) -> Iterator[Row]:
        """What *entries* add to the tables: each publisher of a stream once."""
        for entry in entries:
            if not isinstance(entry, Message):
                continue
            if entry.protocol == NAME and entry.native is not None:
                if self._is_first(entry):
                    stream, *_, publisher, _chain = entry.native[NAME]
                    yield Row("streamr_publishers", (stream, publisher.lower(), entry.channel, entry.sender.number))
            elif NAME in entry.refs and self._is_first(entry):
                stream, sender, address = stream_of(entry.channel)[0], entry.sender, self._address(entry)
                yield Row("streamr_publishers", (stream, address, entry.channel, sender.number))
                yield Row("streamr_authors", (address, sender.protocol, sender.identity, sender.number))

    def pruning_statements(self) -> Iterator[Statement]:
        """Delete the rows of senders without a stored message; a sender that publishes again gets a new row."""
        self._seen.clear()
        yield from ((sql, ()) for sql in DELETE_UNUSED)

    def _is_first(self, entry: Message) -> bool:
        """Whether *entry* is the first message for which rows of its sender in its channel were made."""
        who = (entry.channel, entry.protocol, entry.sender.protocol, entry.sender.number)
        first = self._seen.get(who)
        if first is None:
            first = self._seen[who] = entry.seq
        return first >= entry.seq  # the same batch may be written more than once
