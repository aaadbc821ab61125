"""Forests to measure with: an author, communities, and replies, signed on all cores."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from adapters.sprout.forest import forest
from adapters.sprout.forest.forest import NULL_ID, Content, ReplyPosition
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire.codec import NodeLine, node_line

from .workload import MARK

TEXT = MARK + b"x" * 93
LATER = 5_000  # ms; a server starts only after its nodes were signed, but those of real clients are new to it
CHUNK = 250  # nodes that one process signs at a time


@dataclass(frozen=True)
class Tree:
    """A community and its replies, all at depth 1, as lines; the author's identity comes before them."""

    identity: NodeLine
    community: NodeLine
    replies: Sequence[NodeLine]


def _line(raw: bytes) -> NodeLine:
    return node_line(forest.node_id(raw), raw)


def _replies(key_file: bytes, author: str, community: str, first: int, count: int) -> list[NodeLine]:
    key, place = SecretKey(key_file), ReplyPosition(community, 1, community, NULL_ID)
    nodes = (forest.sign_reply(place, Content(TEXT), author, key, first + n) for n in range(count))
    return [_line(raw) for raw in nodes]


def trees(communities: int, replies: int) -> list[Tree]:
    """So many communities, each with so many replies, said to be made a little later: when they are announced."""
    now = int(time.time() * 1000) + LATER
    key = SecretKey.generate(now // 1000)
    identity = _line(forest.sign_identity("ada", key, now))
    roots = [_line(forest.sign_community(f"room {now + n}", identity.id, key, now)) for n in range(communities)]
    work = [
        (key.file, identity.id, root.id, now + n * replies + start, min(CHUNK, replies - start))
        for n, root in enumerate(roots)
        for start in range(0, replies, CHUNK)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        signed = [line for chunk in pool.map(_replies, *zip(*work, strict=True)) for line in chunk] if work else []
    return [Tree(identity, root, tuple(signed[n * replies : (n + 1) * replies])) for n, root in enumerate(roots)]
