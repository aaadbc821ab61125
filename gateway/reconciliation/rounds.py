"""The message of one side in each round, given its set and the message of the other side.

One side begins (`begin`) and then compares each answer (`compare`), until nothing is left to ask; it learns both
differences. The other side only answers (`answer`). Neither keeps anything between two rounds, so a set may change
meanwhile: a difference that comes up twice, or that something else has settled, does no harm.

A range that differs is divided into `PARTS`; the side that answers tells its ids once they are few. Small parts cost
more rounds and fewer bytes: with a million messages and a hundred differences there are four rounds of 70 kB in all,
where parts of a sixteenth, as the reference implementations have them, take 170 kB.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Final, NamedTuple

from .items import ItemSet, id_of
from .wire import (
    ID_SIZE,
    INFINITY,
    START,
    VERSION,
    VERSIONS,
    MalformedSync,
    MessageWriter,
    Payload,
    Range,
    bound_between,
    decode,
    place,
)

FIRST_PARTS: Final = 64  # into which everything is divided to begin with
PARTS: Final = 8  # into which a range that differs is divided
FEW: Final = 16  # items; an answer tells the ids of as many, instead of dividing them
MIN_MESSAGE: Final = 4_096  # bytes; so that every round gets on
MAX_MESSAGE: Final = 256 << 10  # bytes; what does not fit is left to the next round
MAX_TOLD: Final = MAX_MESSAGE // ID_SIZE  # ids that a round tells of each side; the other gateway may lack a million


class Comparison(NamedTuple):
    """What a round showed: the *next* message (None at the end), items that only this side has, and ids it lacks."""

    next: bytes | None
    have: list[bytes]
    need: list[bytes]


def begin(items: ItemSet, since: int = 0) -> bytes:
    """The first message: about what is from *since* (ms) on."""
    writer, lower = MessageWriter(), place(since) if since else START
    writer.add(lower, None)
    for part in _parts(items, items.rank(lower), len(items), INFINITY, FIRST_PARTS):
        writer.add(*part)
    return writer.message()


def answer(items: ItemSet, message: bytes, limit: int = MAX_MESSAGE) -> bytes:
    """The answer to a *message* of the side that began, of about *limit* bytes at most.

    Raises `MalformedSync`. A message of another version is answered with the version that is known here.
    """
    if not message or message[0] not in VERSIONS:
        raise MalformedSync("it does not begin with a version of the protocol")
    if message[0] != VERSION:
        return bytes((VERSION,))
    writer, at = MessageWriter(), 0
    for upper, said in decode(message):
        if writer.size >= limit:
            return _cut(writer, items, at)
        end = items.rank(upper)
        if _agrees(items, at, end, said):
            writer.add(upper, None)
        elif isinstance(said, bytes) and end - at > FEW:
            for part in _parts(items, at, end, upper, PARTS):
                writer.add(*part)
        elif end - at > (room := max(1, (limit - writer.size) // ID_SIZE)):
            writer.add(_bound(items, at + room), _ids(items, at, at + room))
            return _cut(writer, items, at + room)
        else:
            writer.add(upper, _ids(items, at, end))
        at = end
    return writer.message()


def compare(items: ItemSet, message: bytes, limit: int = MAX_MESSAGE) -> Comparison:
    """What the other side's answer *message* shows; the next message has about *limit* bytes at most.

    Raises `MalformedSync`.
    """
    if message[:1] != bytes((VERSION,)):
        raise MalformedSync("it is not of version 1 of the protocol")
    writer, at = MessageWriter(), 0
    have: list[bytes] = []
    need: list[bytes] = []
    for upper, said in decode(message):
        if writer.size >= limit or len(have) >= MAX_TOLD:
            return Comparison(_cut(writer, items, at), have, need)
        end = items.rank(upper)
        if _agrees(items, at, end, said):
            writer.add(upper, None)
        elif isinstance(said, bytes):
            for part in _parts(items, at, end, upper, PARTS):
                writer.add(*part)
        else:
            theirs = set(said or ())
            only = (item for item in items.items(at, end) if id_of(item) not in theirs)
            have += islice(only, MAX_TOLD - len(have))
            need += theirs.difference(map(id_of, items.items(at, end)))
            if (rest := next(only, None)) is not None:
                return Comparison(_cut_before(writer, items, rest), have, need)
            writer.add(upper, None)
        at = end
    return Comparison(None if writer.is_empty else writer.message(), have, need)


def _agrees(items: ItemSet, begin: int, end: int, said: Payload) -> bool:
    """Whether nothing is left to ask about a range after what the other side *said*."""
    if isinstance(said, bytes):
        return items.fingerprint(begin, end) == said
    return said is None or (len(said) == end - begin and _ids(items, begin, end) == said)


def _parts(items: ItemSet, begin: int, end: int, upper: bytes, count: int) -> Iterator[Range]:
    """The range that ends at *upper* in at most *count* parts; the ids of one that cannot be divided."""
    if end - begin < 2:
        yield Range(upper, _ids(items, begin, end))
        return
    count = min(count, end - begin)
    cuts = [begin + (end - begin) * part // count for part in range(count + 1)]
    for start, stop in pairwise(cuts):
        yield Range(upper if stop == end else _bound(items, stop), items.fingerprint(start, stop))


def _cut(writer: MessageWriter, items: ItemSet, at: int) -> bytes:
    """The message without the ranges from rank *at* on: one fingerprint stands for them."""
    writer.add(INFINITY, items.fingerprint(at, len(items)))
    return writer.message()


def _cut_before(writer: MessageWriter, items: ItemSet, item: bytes) -> bytes:
    """The message of which nothing is left to ask before *item*, without the ranges from there on."""
    rank = items.rank(item)
    writer.add(_bound(items, rank), None)
    return _cut(writer, items, rank)


def _bound(items: ItemSet, rank: int) -> bytes:
    """The shortest bound between the item with this *rank* and the one before it."""
    return bound_between(items.item(rank - 1), items.item(rank))


def _ids(items: ItemSet, begin: int, end: int) -> list[bytes]:
    return [id_of(item) for item in items.items(begin, end)]
