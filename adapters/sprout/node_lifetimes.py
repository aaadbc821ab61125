"""How long nodes that are not messages stay in the log after retention has removed the messages around them.

A node stays while a kept node stands below it or is signed by its owner, or while it is the community of a channel; an
identity also while its author, or the peer that it stands for, is kept. A removed node can return: clients are asked
for the ancestors of their nodes, and the gateway mints the same nodes again.
"""

from __future__ import annotations

from collections.abc import Iterator

from adapters.sprout.forest.canonical import CANONICAL_PREFIX, canonical_id
from adapters.sprout.forest.forest import Identity, Node, Reply, decode
from adapters.sprout.mint.mint import GATEWAY, PEER_PREFIX
from adapters.sprout.store.tables import NAME, day_name, node_time
from gateway.core.message import Message
from gateway.storage.fact_lifetimes import Lifetime, peer
from gateway.storage.index_schema import KnownId, Statement
from gateway.storage.record import Entry, Fact, decode_base64url


def lifetime(fact: Fact) -> Lifetime | None:
    """How long *fact* stays; None if it is not a node."""
    if fact.kind != "entity" or fact.protocol != NAME:
        return None
    id, what, copy = fact.fields["native"][NAME], fact.fields.get("what"), fact.fields.get("copy")
    about = f"{NAME} entity {id} {what}"
    if what == GATEWAY:
        return Lifetime(about)
    needed = [_node(id)]
    if what is not None:
        needed.append(peer(int(what.removeprefix(PEER_PREFIX))) if what.startswith(PEER_PREFIX) else _minted(what))
    if copy is not None:
        needed.append(_message(copy))
    return Lifetime(about, tuple(needed))


def references(entry: Entry) -> Iterator[str]:
    """The names of everything that *entry* depends on."""
    if isinstance(entry, Message):
        yield _message(entry.id)
        if entry.protocol == NAME and entry.wire is not None:
            yield from _above(decode(decode_base64url(entry.wire)))
            return
        for id in entry.refs.get(NAME, {}).values():
            if isinstance(id, str):
                yield _node(id)
        yield _minted(day_name(entry.channel, node_time(entry.timestamp)))
    elif entry.kind == "channel" and (community := entry.fields["addresses"].get(NAME)) is not None:
        yield _node(community)
    elif entry.protocol == NAME and entry.kind == "peer":
        yield _node(entry.fields["sender"])
    elif entry.protocol == NAME and entry.kind == "entity":
        yield from _above(decode(decode_base64url(entry.fields["wire"])))


def removal_statements(fact: Fact) -> Iterator[Statement]:
    """Statements that delete the rows of *fact* that are not deleted with its record."""
    if fact.kind == "entity" and fact.protocol == NAME:
        id, raw = fact.fields["native"][NAME], decode_base64url(fact.fields["wire"])
        for name in (id, CANONICAL_PREFIX + canonical_id(id, decode(raw), raw)):
            yield KnownId(name, fact.seq).removal
        if (what := fact.fields.get("what")) is not None:
            yield "DELETE FROM sprout_minted WHERE what = ? AND id = ?", (what, id)


def _above(node: Node) -> Iterator[str]:
    """The names of the nodes that *node* refers to: its author, parent, community and conversation."""
    if not isinstance(node, Identity):
        yield _node(node.author)
    if isinstance(node, Reply):
        yield _node(node.parent)
        yield _node(node.community)
        yield _node(node.conversation)


def _node(id: str) -> str:
    return f"{NAME} {id}"


def _minted(what: str) -> str:
    return f"{NAME} minted {what}"


def _message(id: str) -> str:
    return f"message {id}"
