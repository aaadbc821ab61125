"""Reads the items of channels from the log: the index says where their records stand. Call it in a thread.

Decoding a whole record takes five times as long as finding its ids, and a million may have to be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.core.errors import Unavailable
from gateway.core.jsontext import dumps
from gateway.core.message import Message
from gateway.core.shared_ids import canonical_in, common_id, time_of
from gateway.storage.bulk_reading import lines_at
from gateway.storage.record import BadRecord, decode
from gateway.storage.segments import Segments

from .items import make_item
from .wire import MAX_TIME

CHUNK: Final = 5_000  # items that are yielded at a time: a millisecond to sort
PLACES: Final = (
    "SELECT seq, offset FROM messages WHERE channel IN (SELECT value FROM json_each(?)) AND seq > ? AND seq <= ?"
    " ORDER BY seq"
)


class _Ids(msgspec.Struct, gc=False):
    """The members of a record that its item depends on."""

    id: str
    time: int
    timestamp: int | None = None
    ids: tuple[str, ...] = ()
    native: dict[str, Any] = {}


_DECODER: Final = msgspec.json.Decoder(_Ids)


def read_items(
    index: Path, segments: Segments, channels: Collection[str], after: int, until: int
) -> Iterator[list[bytes]]:
    """Yield the items of the messages of *channels* with sequences above *after*, up to *until*, in chunks.

    *index* is the file of the index, which has them all. Raises `Unavailable` if it or the log cannot be read.
    """
    try:
        connection = sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True)
        try:
            places = connection.execute(PLACES, (dumps(sorted(channels)).decode(), after, until))
            chunk = []
            for seq, line in lines_at(segments, places):
                with suppress(BadRecord):  # its checksum is right, and it makes no sense
                    chunk.append(item_of(seq, line))
                if len(chunk) == CHUNK:
                    yield chunk
                    chunk = []
            yield chunk
        finally:
            connection.close()
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(f"the messages cannot be read: {error}") from error


def digest_of(id: str) -> bytes:
    """The id of 32 bytes by which two gateways compare what they have, from a common *id*."""
    return sha256(id.encode(errors="backslashreplace")).digest()


def item_of(seq: int, line: bytes) -> bytes:
    """The item of the message with the sequence *seq*, whose record is *line*; raises `BadRecord`."""
    try:
        found = _DECODER.decode(line)
    except msgspec.DecodeError:  # a lone surrogate, as the general reader takes it
        message = decode(line)
        if not isinstance(message, Message):
            raise BadRecord("it is not a message") from None
        found = _Ids(message.id, message.time, message.timestamp, message.ids)
    ids = found.ids
    if found.native:
        ids = (*(each for each in found.native.values() if isinstance(each, str)), *ids)
    common = common_id(found.id, ids) if ids else found.id
    if canonical := canonical_in(common):
        time = time_of(canonical)
    else:
        time = max(0, min(found.time if found.timestamp is None else found.timestamp, MAX_TIME))
    return make_item(time, digest_of(common), seq)
