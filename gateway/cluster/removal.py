"""A removal: the element of the stream that ends the membership of a gateway. It is no batch, and has no number.

A gateway that reads the removal of its own name behind its position ends, or does not start: others went on without it,
and what it has in memory counts for nothing. One that begins with a newer backup has the removal before its position,
so the name may be used again.
"""

from __future__ import annotations

import re
from typing import Final

from zlib_ng.zlib_ng import crc32

_REMOVAL: Final = re.compile(rb"remove ([A-Za-z0-9._-]{1,64}) ([0-9a-f]{8})\n")


def encode_removal(name: str) -> bytes:
    """The removal of the gateway *name*, as bytes."""
    head = f"remove {name}".encode()
    return b"%b %08x\n" % (head, crc32(head))


def decode_removal(data: bytes) -> str | None:
    """The name of the gateway that *data* removes; None if *data* is not a removal."""
    found = _REMOVAL.fullmatch(data)
    if found is None or found[2] != b"%08x" % crc32(data[: found.start(2) - 1]):
        return None
    return found[1].decode()
