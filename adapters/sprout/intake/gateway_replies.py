"""Announced replies with the TWIG pairs of a gateway: conversations that it opened, and copies of messages."""

from __future__ import annotations

from adapters.sprout.forest.trusted_gateways import CHANNEL, TrustedGateways
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ORIGIN
from gateway.core.bus import MAX_ID

from .outcome import IncomingReply, NodeOutcome
from .publisher import ReplyPublisher


class GatewayReplies:
    """Takes replies with metadata that say nothing of directs or presence."""

    def __init__(self, nodes: NodeDirectory, mint: Mint, gateways: TrustedGateways, publisher: ReplyPublisher) -> None:
        self._nodes = nodes
        self._mint = mint
        self._gateways = gateways
        self._publisher = publisher
        self._store = nodes.store

    def take(self, reply: IncomingReply, session: SproutConnection) -> NodeOutcome:
        """Take *reply*, whose sender may publish it."""
        line, node, channel = reply.line, reply.node, reply.channel
        if CHANNEL in reply.pairs and node.depth == 1:  # a conversation that another gateway opened: no message
            self._nodes.cache(line.id, node)
            recovered = {} if reply.canonical else self._mint.recovered_fields(node, channel)
            return NodeOutcome(self._store.log_entity(line, channel=channel, **recovered))
        origin = reply.pairs.get(ORIGIN, b"").decode(errors="replace")
        usable = bool(origin) and len(origin) <= MAX_ID and origin.isprintable()
        if usable and (held := self._nodes.receipt(origin)) is not None:
            self._nodes.cache(line.id, node, held.id)
            is_own = not reply.canonical and self._mint.has_own_key(reply.author)
            if is_own and self._store.form_id(held.seq) is None:
                return NodeOutcome(self._store.log_form(held.seq, line))
            return NodeOutcome(self._store.log_entity(line, channel=channel, copy=held.id))
        trusted = bool(origin) and self._gateways.speaks_for(node.author)
        return self._publisher.publish((reply,), session, origin if trusted else "")[0]
