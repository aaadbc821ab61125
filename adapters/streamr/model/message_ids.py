"""Finds the message that a Streamr message id names; `inReplyTo` holds the JSON text of such an id.

The index knows signed messages by their ids. It does not know the ids of messages from other protocols, which may never
be needed: those are found by their position in the chain of the gateway's address. Anybody can put any id on an
unsigned message, so unsigned messages have no Streamr id (`conversion.ids_of`).

The cost is bounded for any id: one address is looked up, and the messages of its owner in one millisecond are read,
`MAX_CANDIDATES` messages and `MAX_CANDIDATE_BYTES` of their contents at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from adapters.streamr.wire.checks import MAX_INTEGER
from adapters.streamr.wire.ids import NAME, channel_of
from adapters.streamr.wire.message import MessageID
from gateway.core import jsontext
from gateway.core.message import Message
from gateway.storage.index_queries import Lookup

from .stored import ChainPosition

if TYPE_CHECKING:
    from gateway.core.bus import Bus

    from .bridge_signer import BridgeSigner
    from .publishers import Publishers

MAX_CANDIDATES = 128  # messages of one sender in one millisecond, as many as a run has; some 30 microseconds each
MAX_CANDIDATE_BYTES = 1 << 20  # of their contents: long ones take longer
_TYPES: Final = (str, int, int, int, str, str)

# What a sender said in a channel at a time, as its author or as its place there has it.
BY_TIMESTAMP: Final = (
    "SELECT seq, offset FROM messages WHERE channel = ? AND at = ? AND sender = ? ORDER BY seq LIMIT ?"
)
BY_POSITION: Final = (
    "SELECT p.seq, m.offset FROM streamr_places p CROSS JOIN messages m ON m.seq = p.seq"
    " WHERE p.channel = ? AND p.timestamp = ? AND m.sender = ? ORDER BY p.seq LIMIT ?"
)


def parse_message_id(text: str) -> MessageID | None:
    """The message id that *text* writes as a JSON array, its publisher in lower case; None if it is not one."""
    if not text.startswith("["):
        return None
    try:
        given = jsontext.loads(text)
    except ValueError:
        return None
    if tuple(map(type, given)) != _TYPES or not all(0 <= number <= MAX_INTEGER for number in given[1:4]):
        return None
    found = MessageID(*given)
    return found._replace(publisher_id=found.publisher_id.lower())


def resolve_id(text: str, bus: Bus, index: Lookup, bridge_signer: BridgeSigner, publishers: Publishers) -> str | None:
    """The canonical id of the message that *text* names, signed by its publisher or by the gateway; else None."""
    if (found := parse_message_id(text)) is None:
        return None
    if (signed := bus.find(jsontext.dumps(list(found)).decode())) is not None:
        return signed.id
    bridged = _find_message(found, index, bridge_signer.position, publishers.sender_number)
    return None if bridged is None else bridged.id


def _find_message(
    id: MessageID, index: Lookup, place: Callable[[Message], ChainPosition], number: Callable[[str], int | None]
) -> Message | None:
    """The message of another protocol whose Streamr id is *id*; None if there is none.

    *place* returns the position of such a message; *number* the number of the sender with an address of the gateway's,
    as far as the index knows.
    """
    channel, wanted = channel_of(id.stream_id, id.stream_partition), ChainPosition(*id[2:])
    there = (message for message in _candidates(channel, wanted, index, number) if _has_position(message, wanted))
    return next((message for message in there if place(message) == wanted), None)


def _has_position(message: Message, wanted: ChainPosition) -> bool:
    """Whether *message* is of another protocol, and has the *wanted* timestamp and sequence number."""
    link = message.refs.get(NAME)
    return link is not None and tuple(link[:2]) == wanted[:2]


def _candidates(
    channel: str, wanted: ChainPosition, index: Lookup, number: Callable[[str], int | None]
) -> Iterator[Message]:
    """The messages of *channel* that may have the *wanted* position."""
    yield from index.unapplied(channel)
    if (sender := number(wanted.publisher)) is None:
        return
    found = (
        row
        for sql in (BY_TIMESTAMP, BY_POSITION)
        for row in index.rows(sql, (channel, wanted.timestamp, sender, MAX_CANDIDATES))
    )
    size = 0
    for seq, offset in islice(found, MAX_CANDIDATES):
        if size > MAX_CANDIDATE_BYTES:
            return
        if (message := index.read(seq, offset)) is not None:
            size += len(message.content)
            yield message
