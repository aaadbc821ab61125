"""Reads single fields of a reply from the base64url text of its record, without decoding the node (`forest.FIELDS`).

The node was validated before it was logged; each hash of a logged reply, except its conversation, has 32 bytes.
Decoding each node instead would double what a reply costs when the index is rebuilt or written, up to its rows (13 us
of CPU time instead of 6). `test_peek` compares each function with `forest.decode`.
"""

from __future__ import annotations

from typing import Final

from adapters.sprout.forest.forest import decode
from adapters.sprout.forest.node_rules import offered_until
from gateway.storage.record import decode_base64url, encode_base64url

_HASH: Final = 3 + 32
_PARENT: Final = slice(2 + 1 + 3, 2 + 1 + _HASH)
_DEPTH: Final = slice(2 + 1 + _HASH + 3, 2 + 1 + _HASH + 3 + 4)
_METADATA: Final = slice(_DEPTH.stop + 8 + 1, _DEPTH.stop + 8 + 1 + 2)  # the field with its length
_BEGINNING: Final = 4 * -(-_METADATA.stop // 3)  # characters up to there
# The last 30 bits of a depth are five characters; no valid node is deeper, since all its ancestors are held.
_DEPTH_TEXT: Final = slice(_DEPTH.stop // 3 * 4 - 5, _DEPTH.stop // 3 * 4)
_AT_DEPTH_1: Final = b"AAAAB"
# The 16 bits of the metadata's length are two characters and the upper half of a third.
_METADATA_TEXT: Final = slice(_METADATA.start // 3 * 4, _METADATA.start // 3 * 4 + 2)
_NOTHING: Final = b"AA"
_NOTHING_ELSE: Final = b"ABCD"
_REPLY: Final = b"AAEC"  # version 1, type 2


def parent_of(wire: bytes) -> str:
    """The id of the parent of a reply, encoded in base64url as *wire*."""
    return _id(decode_base64url(wire[:_BEGINNING])[_PARENT])


def conversation_of(wire: bytes) -> str | None:
    """The conversation of a reply, encoded in base64url as *wire*; None for a reply that opens one."""
    if wire[_DEPTH_TEXT] == _AT_DEPTH_1:
        return None
    size = int.from_bytes(decode_base64url(wire[:_BEGINNING])[_METADATA], "big")
    start = _METADATA.stop + size + 2 * _HASH + 3
    first = start // 3
    raw = decode_base64url(wire[4 * first : 4 * (first + 12)])  # 12 groups of 3 bytes hold the 32, wherever they begin
    return _id(raw[start % 3 : start % 3 + 32])


def expiration_of(wire: bytes) -> int | None:
    """The time until which the node *wire*, in base64url, is offered, in ms; None for ever."""
    if wire.startswith(_REPLY) and wire[_METADATA_TEXT] == _NOTHING and wire[_METADATA_TEXT.stop] in _NOTHING_ELSE:
        return None  # true of nearly all nodes
    return offered_until(decode(decode_base64url(wire)))


def _id(digest: bytes) -> str:
    return "SHA512_B32__" + encode_base64url(digest).decode()
