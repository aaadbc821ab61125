"""Announced replies that are more than text for a channel: direct, about presence, or from other gateways."""

from __future__ import annotations

from adapters.sprout.forest.canonical import CANONICAL_PREFIX
from adapters.sprout.forest.node_rules import ACTIVITY, is_presence
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.outgoing.presence import SproutPresence
from gateway.core.contracts import Receipt

from .direct_intake import DirectIntake
from .gateway_replies import GatewayReplies
from .outcome import IncomingReply, NodeOutcome


class SpecialReplies:
    """Decides by a reply's TWIG pairs, and by what is held, which part takes it."""

    def __init__(
        self,
        nodes: NodeDirectory,
        rights: Rights,
        presence: SproutPresence,
        directs: DirectIntake,
        from_gateways: GatewayReplies,
    ) -> None:
        self._nodes = nodes
        self._rights = rights
        self._presence = presence
        self._directs = directs
        self._from_gateways = from_gateways
        self._store = nodes.store

    def take(self, reply: IncomingReply, session: SproutConnection, *, requested: bool) -> NodeOutcome | None:
        """What became of *reply*; None if it is plain, and to be published."""
        line, node, channel = reply.line, reply.node, reply.channel
        if self._store.canonical_seq(line.id) is not None:
            held = self._nodes.receipt(CANONICAL_PREFIX + line.id)
            if held is not None:
                return self._take_same(reply, held, session)
        if self._directs.is_direct(reply):
            return self._directs.take(reply, session)
        if not reply.pairs:
            return None
        self._rights.check(session, "publish", channel, node.author)
        if not is_presence(node):
            return self._from_gateways.take(reply, session)
        if not requested:
            self._presence.receive(line, node, reply.pairs[ACTIVITY], channel, session)
            return NodeOutcome(dropped="it only announces presence")
        self._nodes.cache(line.id, node, reply.above)  # its replies become replies to its parent
        copy = {} if reply.above is None else {"copy": reply.above}
        return NodeOutcome(self._store.log_entity(line, channel=channel, **copy))

    def _take_same(self, reply: IncomingReply, held: Receipt, session: SproutConnection) -> NodeOutcome:
        """Log another encoding of the signature of a reply that is *held*: only its id is new."""
        self._rights.check(session, "publish", reply.channel, reply.node.author)
        self._nodes.cache(reply.line.id, reply.node, held.id)
        return NodeOutcome(self._store.log_entity(reply.line, channel=reply.channel, copy=held.id))
