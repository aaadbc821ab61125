"""Canonical ids of nodes: OpenPGP signatures are malleable, since the signature does not cover its own encoding.

Anybody can encode a signature in another way. To the reference, each encoding makes another node by the same author.
Here they are one message: a second encoding is not published, and identifies no connection. The encoding that genuine
programs write is canonical; a node that came with another is also known by its canonical id, after `CANONICAL_PREFIX`.
"""

from __future__ import annotations

from typing import Final

from . import forest, packets
from .packets import OpenPGPError

CANONICAL_PREFIX: Final = "anew:"


def canonical_id(id: str, node: forest.Node, raw: bytes) -> str:
    """The id of *node* with its signature as `packets.canonical` encodes it: *id*, unless its encoding differs."""
    signature = node.signature
    if packets.is_usual(signature):
        return id
    try:
        canonical = packets.canonical(signature)
    except (OpenPGPError, ValueError):  # not a signature: the node will be refused
        return id
    return id if canonical == signature else forest.node_id(forest.with_signature(node, raw, canonical))
