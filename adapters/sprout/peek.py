"""What can be told of a reply by looking into its record's text, without decoding the node (`forest.FIELDS`).

The node was checked before it was logged, and each hash of a logged reply but its conversation has 32 bytes.
"""

from __future__ import annotations

from typing import Final

from gateway.record import binary, unbinary

_HASH: Final = 3 + 32
_PARENT: Final = slice(2 + 1 + 3, 2 + 1 + _HASH)
_DEPTH: Final = slice(2 + 1 + _HASH + 3, 2 + 1 + _HASH + 3 + 4)
_METADATA: Final = _DEPTH.stop + 8 + 1  # where its length stands
_BEGINNING: Final = 60  # characters that reach beyond the depth


def parent_of(wire: bytes) -> str:
    """The parent of a reply, whose bytes are *wire* in base64url."""
    return _id(unbinary(wire[:_BEGINNING])[_PARENT])


def conversation_of(wire: bytes) -> str | None:
    """The conversation of a reply, whose bytes are *wire* in base64url; None for what opens one."""
    if int.from_bytes(unbinary(wire[:_BEGINNING])[_DEPTH], "big") == 1:
        return None
    raw = unbinary(wire)
    at = _METADATA + 2 + int.from_bytes(raw[_METADATA : _METADATA + 2], "big") + 2 * _HASH + 3
    return _id(raw[at : at + 32])


def _id(digest: bytes) -> str:
    return "SHA512_B32__" + binary(digest).decode()
