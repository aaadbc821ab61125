"""What entries of the log add to the state of streams and publishers, and to the adapter's tables in the index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from adapters.streamr.model import stored
from adapters.streamr.publishing.conversion import logged_author
from adapters.streamr.wire.ids import NAME
from gateway.core.message import Message
from gateway.storage.index_schema import Row
from gateway.storage.record import Fact

if TYPE_CHECKING:
    from adapters.streamr.model.positions import PublisherPositions
    from adapters.streamr.model.publishers import Publishers
    from adapters.streamr.model.streams import Streams

    from .context import Context


def learn(context: Context, positions: PublisherPositions, entries: Sequence[Message | Fact]) -> None:
    """Note in *positions* how far each publisher has come in *entries*, and what users declared about streams."""
    for entry in entries:
        if entry.protocol == NAME and isinstance(entry, Fact):
            context.streams.learn(entry)
        elif entry.protocol == NAME and isinstance(entry, Message) and entry.native is not None:
            positions.advance(entry.channel, logged_author(entry), tuple(entry.native[NAME][2:4]))
        elif isinstance(entry, Message) and NAME in entry.refs:
            context.bridge_signer.learn(entry)


def rows(streams: Streams, publishers: Publishers, entries: Sequence[Message | Fact]) -> Iterable[Row]:
    """Each publisher of a stream once, and each message whose position differs from its timestamp."""
    for entry in entries:
        if not isinstance(entry, Message):
            yield from streams.rows(entry)
        elif entry.protocol != NAME or entry.native is None:
            link = entry.refs.get(NAME)
            if link is None or link[0] != entry.timestamp:  # seldom
                yield stored.position_row(entry, link)
    yield from publishers.rows(entries)
