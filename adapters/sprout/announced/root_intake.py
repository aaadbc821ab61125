"""Announced identities and communities: the roots of the forest."""

from __future__ import annotations

from adapters.sprout.forest.forest import Community, Identity
from adapters.sprout.forest.node_rules import OK, validate
from adapters.sprout.forest.trusted_gateways import TrustedGateways
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.naming import channel_name
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.mint.mint import Mint
from adapters.sprout.outgoing.audience import Audience
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bus import Bus
from gateway.core.errors import Forbidden

from .outcome import NodeOutcome, refusal


class RootIntake:
    """Logs identities and communities, and announces them to others; a community becomes a channel."""

    def __init__(
        self,
        bus: Bus,
        nodes: NodeDirectory,
        rights: Rights,
        audience: Audience,
        mint: Mint,
        gateways: TrustedGateways,
    ) -> None:
        self._bus = bus
        self._nodes = nodes
        self._rights = rights
        self._audience = audience
        self._mint = mint
        self._gateways = gateways
        self._store = nodes.store

    def take(
        self, line: NodeLine, node: Identity | Community, session: SproutConnection, canonical: str, *, requested: bool
    ) -> NodeOutcome:
        """Take the *node* on *line*; *canonical* is its canonical id if that is another, else empty.

        An expired identity is taken where it was *requested*: it is needed to check what its owner signed.
        """
        self._rights.pace(session, line.id)
        author = self._nodes.node(node.author) if isinstance(node, Community) else None
        now = 0 if requested and isinstance(node, Identity) else self._bus.clock()
        result = validate(node, line.raw, now, author, None)
        if result is not OK:
            return refusal(result)
        if isinstance(node, Community):
            seq = self._take_community(line, node, session)
        elif self._rights.may_announce_identity(session, line.id):
            seq = self._store.log_entity(line, **({} if canonical else self._mint.recovered_fields(node)))
            self._audience.announce(line.line, skip=session)
        else:
            raise Forbidden("publish", "")
        self._nodes.cache(line.id, node)
        return NodeOutcome(seq)

    def channel_of(self, id: str, node: Community) -> str:
        """The channel that the community *node*, whose id is *id*, is or will be."""
        name = self._gateways.channel(node) or self._nodes.channel(id)
        return name or channel_name(id, node.name.text or "", self._bus.channels)

    def _take_community(self, line: NodeLine, node: Community, session: SproutConnection) -> int:
        """Log a community, and make it the channel that a trusted gateway says, that has it already, or a new one."""
        claimed = self._gateways.channel(node)
        if claimed is not None and self._mint.has_community(claimed):
            return self._take_alias(line, node, claimed, session)
        name = self.channel_of(line.id, node)
        self._rights.check(session, "publish", name, node.author)
        self._bus.channels.reserve(name)  # raises if only configured channels may exist
        seq = self._store.log_entity(line)
        self._audience.announce(line.line, name, skip=session)
        self._bus.channels.assign(NAME, name, line.id)
        return seq

    def _take_alias(self, line: NodeLine, node: Community, channel: str, session: SproutConnection) -> int:
        """Log a second community of *channel*, made by another gateway: replies below it belong to the channel too."""
        self._rights.check(session, "publish", channel, node.author)
        seq = self._store.log_entity(line, alias=channel)
        self._audience.announce(line.line, channel, skip=session)
        self._audience.community_added(line.id)
        return seq
