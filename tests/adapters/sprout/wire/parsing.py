"""Everything that a parser returns for some bytes, in a form that tests compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from adapters.sprout.wire.codec import (
    Frame,
    SproutError,
)
from adapters.sprout.wire.parser import Parser
from gateway.core.errors import ProtocolError

A = "SHA512_B32__CZMk9Gv5g4GYNAPcdvwkDNITsfYFFsTu95jM5Fe4Ekk"
B = "SHA512_B32__TlztQX6enWYO3EXlDg1_F6tXOpiSxlGr7nZTNF530lM"
NULL = "NullHash_B0__"


class Refused(NamedTuple):
    """A `SproutError`, as the peer would see it."""

    id: int
    status: int


Outcome = Frame | Refused | str


def outcomes(chunks: Iterable[bytes]) -> list[Outcome]:
    """Everything a parser says to these chunks: frames, refusals, and whether the framing was lost."""
    reader, said = Parser(), list[Outcome]()
    for chunk in chunks:
        reader.feed(chunk)
        while True:
            try:
                frame = reader.next_frame()
            except SproutError as error:
                said.append(Refused(error.message_id, error.status))
            except ProtocolError as error:
                return [*said, str(error)]
            else:
                if frame is None:
                    break
                said.append(frame)
    return [*said, "the end inside a message"] if reader.in_message else said


def announce(lines: list[bytes]) -> bytes:
    return b"\n".join((b"announce 1 %d" % len(lines), *lines, b""))


def typed(said: list[Outcome]) -> list[tuple[type, Outcome]]:
    """With the types beside them: named tuples of two types can be equal."""
    return [(type(one), one) for one in said]


def answers(data: bytes) -> list[Refused]:
    """What *data* is answered with; frames that were read count as status 0."""
    said = outcomes([data])
    assert not any(isinstance(one, str) for one in said), said
    return [Refused(one.id, one.status if isinstance(one, Refused) else 0) for one in said if not isinstance(one, str)]
