"""A batch: what one gateway submits to the stream of a cluster at once, as bytes.

The first line is the header: `GATEWAY EPOCH NUMBER RECORDS CRC`. GATEWAY is the name of a gateway in its cluster, EPOCH
counts its starts, and NUMBER the batches of that epoch, both from 1. RECORDS is the number of lines that follow. CRC is
the CRC-32, in hex, of the header before it and of these lines.

The others are records as in the log (docs/log.md) before they are taken: `seq` is the place of the submission in its
batch, from 1 and the same for all messages of a run; `time` is 0; there are no `refs`; `id` is empty unless the author
chose it. `time`, `seq` and `id` are given to them when they are taken, as on every gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from gateway.core.message import Message
from gateway.storage.record import BadRecord, Entry, Fact, decode_untrusted, encode

MAX_BATCH: Final = (8 << 20) - (64 << 10)  # bytes: what a server with a `max_payload` of 8 MiB takes, with its headers
MAX_COUNT: Final = (1 << 53) - 1  # of epochs and numbers
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)  # of a gateway in its cluster
_HEADER: Final = re.compile(rb"([A-Za-z0-9._-]{1,64}) ([1-9]\d{0,15}) ([1-9]\d{0,15}) ([1-9]\d{0,6}) ([0-9a-f]{8})\n")

Submission = Sequence[Message] | Fact  # a run, or one fact


class BadBatch(ValueError):
    """Bytes are no batch; the text says why. Every gateway ignores them."""


class Batch(NamedTuple):
    """The *submissions* of one gateway, in order, in its batch *number* of an *epoch*."""

    gateway: str
    epoch: int
    number: int
    submissions: Sequence[Submission]


def encode_batch(batch: Batch) -> bytes:
    """The bytes of *batch*, whose messages were not taken yet; `BadBatch` if it is too long, or nothing is in it."""
    lines = [line for place, each in enumerate(batch.submissions, 1) for line in _lines(place, each)]
    if not lines or NAME.fullmatch(batch.gateway) is None or not _counts(batch.epoch, batch.number):
        raise BadBatch("a batch has submissions, the name of a gateway, an epoch and a number")
    head, body = b"%b %d %d %d" % (batch.gateway.encode(), batch.epoch, batch.number, len(lines)), b"".join(lines)
    data = b"%b %08x\n%b" % (head, crc32(body, crc32(head)), body)
    if len(data) > MAX_BATCH:
        raise BadBatch(f"a batch has at most {MAX_BATCH:,} bytes")
    return data


def decode_batch(data: bytes) -> Batch:
    """The batch in *data*; `BadBatch` if it is none, which depends on nothing but *data*."""
    header = _HEADER.match(data) if len(data) <= MAX_BATCH else None
    if header is None:
        raise BadBatch("it has no header, or is too long")
    name, epoch, number, count, crc = header.groups()
    body = data[header.end() :]
    if crc != b"%08x" % crc32(body, crc32(data[: header.start(5) - 1])):
        raise BadBatch("the checksum does not agree")
    lines = body.splitlines(keepends=True)
    if len(lines) != int(count) or not _counts(int(epoch), int(number)):
        raise BadBatch("the header says something else")
    try:
        return Batch(name.decode(), int(epoch), int(number), [*_submissions(map(decode_untrusted, lines))])
    except BadRecord as error:
        raise BadBatch(f"a record is bad: {error}") from None


def _counts(*numbers: int) -> bool:
    return all(1 <= number <= MAX_COUNT for number in numbers)


def _lines(place: int, submission: Submission) -> Iterable[bytes]:
    if isinstance(submission, Fact):
        yield encode(Fact(submission.kind, submission.fields, place, 0))
        return
    for message in submission:
        if message.seq or message.refs or message.id_has_seq:
            raise BadBatch("a message was taken already")
        message.seq = place
        try:
            yield encode(message)
        finally:
            message.seq = 0


def _submissions(entries: Iterable[Entry]) -> Iterable[Submission]:
    for expected, (place, group) in enumerate(groupby(entries, lambda entry: entry.seq), 1):
        submission = [*group]
        first = submission[0]
        if place != expected or any(entry.time for entry in submission):
            raise BadBatch("a record is out of its place, or was taken already")
        if isinstance(first, Fact):
            if len(submission) > 1:
                raise BadBatch("a fact is submitted by itself")
            yield Fact(first.kind, first.fields)
        else:
            yield _run(submission, first)


def _run(entries: Sequence[Entry], first: Message) -> list[Message]:
    run = [entry for entry in entries if isinstance(entry, Message)]
    if len(run) < len(entries) or any((m.channel, m.protocol) != (first.channel, first.protocol) for m in run):
        raise BadBatch("a run has messages of one protocol in one channel")
    for message in run:
        if message.refs:
            raise BadBatch("a message was taken already")
        message.seq = 0
    return run
