"""Peeking at a reply without decoding it gives the same values as decoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.sprout.forest import forest, twig
from adapters.sprout.forest.forest import NULL_ID, TWIG, Content, Reply
from adapters.sprout.forest.node_rules import EXPIRATION, offered_until
from adapters.sprout.store import peek
from adapters.sprout.wire import base64url

VECTORS = Path(__file__).parents[3] / "vectors/sprout"
VALID: list[Any] = [vector["node"] for vector in json.loads((VECTORS / "valid.json").read_text())]

DEEP = next(
    vector["node"]["id"] for vector in json.loads((VECTORS / "valid.json").read_text()) if "depth3" in vector["name"]
)


@pytest.mark.parametrize("vector", VALID, ids=[vector["id"][-6:] for vector in VALID])
def test_peeking_agrees_with_reading(vector: Any) -> None:
    wire = vector["raw_b64u"].encode()
    raw = base64url.decode(wire)
    node = forest.decode(raw)
    assert forest.created_of(raw) == node.created
    assert peek.expiration_of(wire) == offered_until(node)
    if isinstance(node, Reply):
        assert peek.parent_of(wire) == node.parent
        assert peek.conversation_of(wire) == (None if node.conversation == NULL_ID else node.conversation)


@pytest.mark.parametrize("size", range(40))
def test_peeking_looks_behind_metadata_of_any_length(size: int) -> None:
    (deep,) = (vector for vector in VALID if vector["id"] == DEEP)
    node = replace(forest.decode(base64url.decode(deep["raw_b64u"].encode())), metadata=Content(b"x" * size, TWIG))
    assert isinstance(node, Reply)
    for depth in (2, 64, 1 << 20, (1 << 30) - 1):
        wire = base64url.encode(forest.encode(replace(node, depth=depth)))
        assert peek.conversation_of(wire) == node.conversation
        assert peek.parent_of(wire) == node.parent


@pytest.mark.parametrize(
    "pairs", [{}, {EXPIRATION: b"2026-11-23T08:00:00Z"}, {EXPIRATION: b"never"}, {"other/1": b"x"}]
)
def test_peeking_finds_the_expiration_of_a_node(pairs: dict[str, bytes]) -> None:
    (deep,) = (vector for vector in VALID if vector["id"] == DEEP)
    node = replace(
        forest.decode(base64url.decode(deep["raw_b64u"].encode())), metadata=Content(twig.encode(pairs), TWIG)
    )
    assert peek.expiration_of(base64url.encode(forest.encode(node))) == offered_until(node)
    assert (offered_until(node) is None) == (EXPIRATION not in pairs)
