"""A relay that was dialled, and the lines of the protocol by which tests talk to it."""

from __future__ import annotations

from typing import Any

from adapters.sprout.forest import twig
from adapters.sprout.hub.rights import LINK_PRINCIPAL
from adapters.sprout.sessions.dialled_relays import SproutPeer
from adapters.sprout.sessions.peering import Peering
from adapters.sprout.wire.codec import MAX_NODES
from gateway.core.principal import Principal


def dial(place: Any, **peer: Any) -> Any:
    """A peering, and the line of the relay that was dialled; *peer* says what is exchanged."""
    session = place.adapter.open(Peering, Principal(LINK_PRINCIPAL))
    session.exchange = SproutPeer.model_validate({"url": "tcp://relay.example:1", **peer})
    line = type(place.connect())(place, session)
    assert line.read() == f"list 0 1 {MAX_NODES}\n"
    return line


def response(id: int, *nodes: str) -> str:
    return "\n".join((f"response {id} {len(nodes)}", *nodes, ""))


def id_of(line: str) -> str:
    return line.split(" ")[0]


def lines(text: str) -> list[str]:
    """Requests, and of announced nodes the ids."""
    return [id_of(line) if line.startswith("SHA512") else line for line in text.splitlines()]


def signed(author: Any, parent: str, text: str, **pairs: str) -> str:
    """A reply to the node on the line *parent*, with metadata."""
    metadata = twig.encode({f"{name}/1": value.encode() for name, value in pairs.items()})
    return str(author.reply(parent, text, metadata))
