"""One signature can be written in several ways, by anybody: nobody signs how it is written.

To the reference, each way makes another node, by the same author. Here they are one message: what comes in one way is
not said again when it comes in another, and tells nobody's identity. Of all ways one is canonical, that of the programs
which sign nodes; a node that came otherwise is known by its canonical id as well, with `CANONICAL_PREFIX` before it.
"""

from __future__ import annotations

from typing import Final

from . import forest, packets
from .packets import OpenPGPError

CANONICAL_PREFIX: Final = "anew:"


def canonical_id(id: str, node: forest.Node, raw: bytes) -> str:
    """The id of *node* with its signature as `packets.canonical` writes it: *id*, unless it was written otherwise."""
    signature = node.signature
    if packets.is_usual(signature):
        return id
    try:
        canonical = packets.canonical(signature)
    except (OpenPGPError, ValueError):  # it is none, and will be refused
        return id
    return id if canonical == signature else forest.node_id(forest.with_signature(node, raw, canonical))
