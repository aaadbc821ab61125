"""Publishes announced replies on the bus, and remembers them as nodes."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.sprout.forest.canonical import CANONICAL_PREFIX
from adapters.sprout.forest.node_rules import expires_at
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.identification import ConnectionIdentifier
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.store.tables import NAME
from gateway.core.bus import Bus

from .outcome import IncomingReply, NodeOutcome, message_of, sender_of


class ReplyPublisher:
    """Publishes runs of replies; *identifier* learns from each whose connection it came by."""

    def __init__(self, bus: Bus, nodes: NodeDirectory, identifier: ConnectionIdentifier) -> None:
        self._bus = bus
        self._nodes = nodes
        self._identifier = identifier
        self._store = nodes.store

    def publish(self, run: Sequence[IncomingReply], session: SproutConnection, origin: str = "") -> list[NodeOutcome]:
        """Publish a *run* of replies by one author to one parent.

        *origin* is the id by which other gateways know the message; only a run of one reply has one.
        """
        first = run[0]
        sender = sender_of(first, self._bus.peers)
        messages = [message_of(reply, sender) for reply in run]
        if first.hidden:
            for message in messages:
                message.undelivered += (NAME,)
        if origin:
            messages[0].ids += (origin,)
        if first.canonical:
            messages[0].ids += (CANONICAL_PREFIX + first.canonical,)
        self._identifier.identify(session, first.line, first.node, sender)
        self._bus.publish_run(messages, session)
        add, cache_line, cache = self._store.add_reply, self._nodes.cache_line, self._nodes.cache
        for reply, message in zip(run, messages, strict=True):
            line, node = reply.line, reply.node
            add(message, line.id, node)
            if reply.canonical:
                self._store.add_canonical(reply.canonical, message.seq, node)
            cache_line(message.seq, line.line, expires_at(node) if reply.pairs else None)
            cache(line.id, node, message.id)
        return [NodeOutcome(message.seq) for message in messages]
