"""Learns what another gateway submitted: nodes, and which messages were offered as which nodes."""

from __future__ import annotations

from adapters.sprout.forest.canonical import canonical_id
from adapters.sprout.forest.forest import Reply, decode
from gateway.core.message import Message
from gateway.storage.record import Entry, decode_base64url

from .store import Store
from .tables import NAME, rows


def learn(store: Store, entry: Entry) -> None:
    """Add *entry*, a message or a fact of this protocol, which was just logged, to *store*."""
    if isinstance(entry, Message):
        if entry.native is not None and entry.wire is not None:
            _learn_reply(store, entry, entry.native[NAME], decode_base64url(entry.wire))
    elif entry.kind in ("entity", "form"):
        id = entry.fields["native"][NAME]
        store.note(entry.seq, [*rows((entry,))])
        if entry.kind == "entity":
            store.add_entity(id, decode_base64url(entry.fields["wire"]), entry.seq)
        else:
            store.on_node(id)


def _learn_reply(store: Store, message: Message, id: str, raw: bytes) -> None:
    node = decode(raw)
    assert isinstance(node, Reply)
    store.add_reply(message, id, node)
    if (canonical := canonical_id(id, node, raw)) != id:
        store.add_canonical(canonical, message.seq, node)
