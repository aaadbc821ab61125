"""Node ids in what a connection writes."""

from __future__ import annotations

from typing import Any

from adapters.sprout.forest import forest
from adapters.sprout.wire import base64url

UNKNOWN = "SHA512_B32__MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"


def id_of(node: str) -> str:
    return node.split(" ")[0]


def ids(text: str) -> list[str]:
    """The ids of the nodes in an announce or a response."""
    return [id_of(line) for line in text.splitlines() if line.startswith("SHA512")]


def refused(place: Any) -> dict[str, int]:
    return {reason: count for (_, reason), count in place.gateway.metrics.counts["refused"].items()}


def alice_line(raw: bytes) -> str:
    return f"{forest.node_id(raw)} {base64url.encode(raw).decode()}"
