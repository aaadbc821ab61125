"""Forests to test with: groves of freshly signed nodes."""

from __future__ import annotations

import time
from functools import cache
from itertools import count, islice
from pathlib import Path

from adapters.sprout.forest import forest
from adapters.sprout.forest.forest import Community, Content, Reply
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.wire import base64url


@cache
def _key(_author: int) -> SecretKey:
    return SecretKey.generate(int(time.time()) - 86_400)


def write_forest(folder: Path, name: str, nodes: int, *, authors: int = 3, communities: int = 2) -> dict[str, str]:
    """Write a grove with so many *nodes*; the ids of its communities, by what they are called.

    Every community has threads of all shapes: each reply answers an older one, whichever.
    """
    folder.mkdir(parents=True, exist_ok=True)
    moment = int(time.time() * 1000) - 3_600_000
    written = 0

    def write(raw: bytes) -> str:
        nonlocal written
        written += 1
        id = forest.node_id(raw)
        (folder / id).write_bytes(raw)
        return id

    people = [write(forest.sign_identity(f"{name} {n}", _key(n), moment)) for n in range(authors)]
    roots: dict[str, str] = {}
    held: list[list[tuple[str, Community | Reply]]] = []
    for number in range(communities):
        raw = forest.sign_community(f"{name} community {number}", people[0], _key(0), moment + number)
        node = forest.decode(raw)
        assert isinstance(node, Community)
        roots[f"{name} community {number}"] = write(raw)
        held.append([(forest.node_id(raw), node)])
    while written < nodes:
        moment += 1
        tree, author = held[written % communities], written % authors
        parent = tree[written * 7919 % len(tree)]
        place = forest.position_below(*parent)
        raw = forest.sign_reply(place, Content(b"reply %d" % written), people[author], _key(author), moment)
        node = forest.decode(raw)
        assert isinstance(node, Reply)
        tree.append((write(raw), node))
    return roots


def make_crowd(communities: int, odd: int = 25) -> tuple[str, list[str]]:
    """The line of an identity, and those of so many communities by it, the oldest first, all of one name.

    Their ids are random, but for the newest: those are *odd*, as one in a hundred is anyhow.
    """
    moment = int(time.time() * 1000) - 3_600_000
    key = _key(0)
    identity = forest.sign_identity("crowd", key, moment)
    author = forest.node_id(identity)
    made = (_line(forest.sign_community("lobby", author, key, moment + n)) for n in count())
    return _line(identity), [*islice(made, communities - odd), *islice(filter(is_odd, made), odd)]


def is_odd(line: str) -> bool:
    """Whether the digest of a node, by its line or its id, has two underscores, as an id has before its digest."""
    return "__" in digest_of(line)


def digest_of(line: str) -> str:
    """The digest in the id of a node."""
    return line.partition(" ")[0].removeprefix("SHA512_B32__")


def _line(raw: bytes) -> str:
    return f"{forest.node_id(raw)} {base64url.encode(raw).decode()}"
