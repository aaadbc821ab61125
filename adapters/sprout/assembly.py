"""Constructs the parts that find and make nodes, and those that connections share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from adapters.sprout.announced.direct_intake import DirectIntake
from adapters.sprout.announced.gateway_replies import GatewayReplies
from adapters.sprout.announced.horizon import RetentionHorizon
from adapters.sprout.announced.intake import Intake
from adapters.sprout.announced.publisher import ReplyPublisher
from adapters.sprout.announced.reply_intake import ReplyIntake
from adapters.sprout.announced.root_intake import RootIntake
from adapters.sprout.announced.special_replies import SpecialReplies
from adapters.sprout.arrivals.waiting import WaitingQuota
from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.forest.trusted_gateways import TrustedGateways
from adapters.sprout.hub.identification import ConnectionIdentifier
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.mint.signing import SigningPool
from adapters.sprout.outgoing.audience import Audience
from adapters.sprout.outgoing.delivery import OrderedDelivery
from adapters.sprout.outgoing.presence import SproutPresence
from adapters.sprout.outgoing.presence_elsewhere import PresenceElsewhere
from adapters.sprout.outgoing.reader import NodeReader
from adapters.sprout.sessions.shared_parts import SproutParts
from adapters.sprout.store.direct_messages import DirectMessages
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import NAME
from gateway.adapter import Services

from .settings import SproutSettings


class Assembly(NamedTuple):
    """What the adapter uses itself, and *parts*, which its sessions use."""

    mint: Mint
    signer: ReplySigner
    horizon: RetentionHorizon
    elsewhere: PresenceElsewhere
    parts: SproutParts


def assemble(
    services: Services, options: SproutSettings, key: SecretKey, name: str, titles: Mapping[str, str]
) -> Assembly:
    """Construct all parts. The gateway, called *name*, signs with *key*; *titles* are names of protocols for people.

    Each part gets only the parts that it needs.
    """
    bus, post = services.bus, services.post
    store, directs, quota = Store(services.index, services.fact), DirectMessages(bus.clock), WaitingQuota()
    lineage, signers = Lineage(store, bus.clock, post), SigningPool(services)

    def node_added(id: str) -> None:
        """Tell all parts that wait for the node *id* that it is held from now on."""
        lineage.node_added(id)
        if quota.is_awaited(id):
            post(partial(quota.node_arrived, id))  # the connection that brought it comes first

    store.on_node = node_added
    rights = Rights(bus, store, services.access.has_any_right)
    audience = Audience(rights)
    mint = Mint(bus, store, signers, key, name, titles, audience.announce_minted)
    signer = ReplySigner(services, store, lineage, directs, mint, signers, key)
    nodes = NodeDirectory(bus, store, directs, lineage, signer)
    identifier = ConnectionIdentifier(bus, options.identify)
    presence = SproutPresence(
        bus, nodes, mint, signer, identifier, post, options.presence, partial(services.tell_members, NAME)
    )
    gateways = TrustedGateways(options.gateways, nodes.node)
    horizon, publisher = RetentionHorizon(services.retention_ms), ReplyPublisher(bus, nodes, identifier)
    direct = DirectIntake(bus, nodes, rights, identifier, mint, enabled=options.direct == "deliver")
    special = SpecialReplies(nodes, rights, presence, direct, GatewayReplies(bus, nodes, mint, gateways, publisher))
    replies = ReplyIntake(nodes, rights, horizon, special, publisher)
    roots = RootIntake(bus, nodes, rights, audience, mint, gateways)
    intake = Intake(bus, store, horizon, roots, replies, partial(services.metrics.count, "faults"))
    reader, delivery = NodeReader(nodes, rights), OrderedDelivery(nodes.message_line)
    parts = SproutParts(
        *(nodes, rights, audience, reader, presence, delivery, intake, quota, services.answer_scheduler, post)
    )
    return Assembly(mint, signer, horizon, PresenceElsewhere(bus, nodes, presence), parts)
