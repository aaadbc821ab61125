"""Announced replies with the TWIG pairs of a gateway: conversations that it opened, and copies of messages."""

from __future__ import annotations

from adapters.sprout.forest.trusted_gateways import CHANNEL, TrustedGateways
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ORIGIN
from adapters.sprout.store.tables import NAME
from gateway.core.bus import Bus
from gateway.core.shared_ids import is_canonical, match_shared_id

from .outcome import IncomingReply, NodeOutcome, content_of
from .publisher import ReplyPublisher


class GatewayReplies:
    """Takes replies with metadata that is neither about direct messages nor about presence."""

    def __init__(
        self, bus: Bus, nodes: NodeDirectory, mint: Mint, gateways: TrustedGateways, publisher: ReplyPublisher
    ) -> None:
        self._bus = bus
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
        if not is_canonical(origin):
            return self._publisher.publish((reply,), session)[0]
        trusted = self._gateways.speaks_for(node.author)
        is_own = not reply.canonical and self._mint.has_own_key(reply.author)
        any_channel = not (trusted or is_own)
        found = match_shared_id(self._bus, origin, NAME, channel, content_of(reply), any_channel=any_channel)
        if (held := found.original) is None:
            return self._publisher.publish((reply,), session, found.id if trusted else "")[0]
        self._nodes.cache(line.id, node, held.id)
        if is_own and self._store.form_id(held.seq) is None:
            return NodeOutcome(self._store.log_form(held.seq, line))
        return NodeOutcome(self._store.log_entity(line, channel=channel, copy=held.id))
