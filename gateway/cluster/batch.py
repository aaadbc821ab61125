"""A batch: what one gateway appends to the stream of a cluster at once, as bytes.

The first line is the header: `MEMBER NUMBER HOLDER FIRST COUNT CRC`. MEMBER is the life of the gateway that sends it
(`name@start`), NUMBER the place of the batch among those that count, from 1, and HOLDER the member whose turn it is
afterwards, or `-` for nobody's. The COUNT lines that follow are lines of the log (docs/log.md), the first of which has
the sequence FIRST. CRC is the CRC-32, in hex, of the header before it and of these lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from gateway.core.errors import InvalidData
from gateway.storage.record import BadRecord, Entry, decode_untrusted

MAX_BATCH: Final = (8 << 20) - (64 << 10)  # bytes: what a server with a `max_payload` of 8 MiB takes, with its headers
MIN_LINE: Final = 32  # bytes; no record is shorter
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)  # of a gateway in its cluster
NOBODY: Final = "-"
_MEMBER: Final = rb"[A-Za-z0-9._-]{1,64}@\d{1,16}"
_HEADER: Final = re.compile(
    rb"(%b) ([1-9]\d{0,15}) (%b|-) ([1-9]\d{0,14}) (0|[1-9]\d{0,6}) ([0-9a-f]{8})\n" % (_MEMBER, _MEMBER)
)


class BadBatch(InvalidData):
    """The bytes are not a batch; the text says why. Every gateway ignores them."""


class Batch(NamedTuple):
    """What *member* sent as the batch *number*: *lines* of the log from the sequence *first* on.

    *holder* has the turn afterwards.
    """

    member: str
    number: int
    holder: str
    first: int
    lines: Sequence[bytes]

    @property
    def end(self) -> int:
        """The sequence after its last line."""
        return self.first + len(self.lines)


def member(name: str, start: int) -> str:
    """The life of the gateway *name* that began at *start* (ms since 1970)."""
    return f"{name}@{start}"


def name_of(member: str) -> str:
    """The name of the gateway that *member* is a life of."""
    return member.partition("@")[0]


def encode_batch(batch: Batch) -> bytes:
    """The bytes of *batch*. Raises `BadBatch` if it is too long."""
    body = b"".join(batch.lines)
    head = f"{batch.member} {batch.number} {batch.holder} {batch.first} {len(batch.lines)}".encode()
    data = b"%b %08x\n%b" % (head, crc32(body, crc32(head)), body)
    if len(data) > MAX_BATCH:
        raise BadBatch(f"a batch has at most {MAX_BATCH:,} bytes")
    return data


def decode_batch(data: bytes) -> Batch:
    """The batch in *data*. Raises `BadBatch` if it is not one, which depends on nothing but *data*."""
    header = _HEADER.match(data) if len(data) <= MAX_BATCH else None
    if header is None:
        raise BadBatch("it has no header, or is too long")
    member, number, holder, first, count, crc = header.groups()
    body = data[header.end() :]
    if crc != b"%08x" % crc32(body, crc32(data[: header.start(6) - 1])):
        raise BadBatch("the checksum does not agree")
    # Before it is split: 8 MiB of line feeds would be 8 million lines, which take half a second and 135 MiB.
    if int(count) * MIN_LINE > len(body) or body.count(b"\n") != int(count) or body[-1:] not in (b"", b"\n"):
        raise BadBatch("the header does not match")
    lines = [line + b"\n" for line in body.split(b"\n")[:-1]]
    return Batch(member.decode(), int(number), holder.decode(), int(first), lines)


def entries_of(batch: Batch) -> list[Entry]:
    """The records in the lines of *batch*. Raises `BadBatch` if a line is not a record, or is out of its place."""
    try:
        entries = [decode_untrusted(line) for line in batch.lines]
    except BadRecord as error:
        raise BadBatch(f"a record is bad: {error}") from None
    if [entry.seq for entry in entries] != [*range(batch.first, batch.end)]:
        raise BadBatch("a record is out of its place")
    return entries
