"""Puts together what finds and makes nodes, and what connections share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from adapters.sprout.forest.openpgp import SecretKey
from adapters.sprout.forest.trusted_gateways import TrustedGateways
from adapters.sprout.hub.audience import Audience
from adapters.sprout.hub.delivery import OrderedDelivery
from adapters.sprout.hub.hub import Hub
from adapters.sprout.hub.identification import ConnectionIdentifier
from adapters.sprout.hub.intake import Intake
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.presence import SproutPresence
from adapters.sprout.hub.reader import NodeReader
from adapters.sprout.hub.rights import Rights
from adapters.sprout.hub.waiting import WaitingQuota
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.mint.signing import SigningPool
from adapters.sprout.store.direct_messages import DirectMessages
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.store import Store
from gateway.adapter import Services

from .settings import SproutSettings


def assemble(
    services: Services, options: SproutSettings, key: SecretKey, name: str, titles: Mapping[str, str]
) -> tuple[Mint, ReplySigner, Hub]:
    """Make the parts, lower ones first. The gateway, called *name*, signs with *key*; *titles* are those of protocols.

    A part is given those that it needs, and none is given all of them.
    """
    bus, post = services.bus, services.post
    store, directs, room = Store(services.index, services.fact), DirectMessages(bus.clock), WaitingQuota()
    lineage, signers = Lineage(store, bus.clock, post), SigningPool(services)

    def node_added(id: str) -> None:
        """The node *id* is held from now on."""
        lineage.node_added(id)
        if room.is_awaited(id):
            post(partial(room.node_arrived, id))  # who brought it takes what waits on that connection first

    store.on_node = node_added
    rights = Rights(bus, store, services.access.has_any_right)
    audience = Audience(rights)
    mint = Mint(bus, store, signers, key, name, titles, audience.announce_minted)
    author = ReplySigner(services, store, lineage, directs, mint, signers, key)
    nodes = NodeDirectory(bus, store, directs, lineage, author)
    identifier = ConnectionIdentifier(bus, options.identify)
    presence = SproutPresence(bus, nodes, mint, author, identifier, post, options.presence)
    gateways = TrustedGateways(options.gateways, nodes.node)
    intake = Intake(
        *(bus, nodes, rights, audience, presence, identifier, mint, author, gateways),
        partial(services.metrics.count, "faults"),
        direct=options.direct == "deliver",
        keep=services.keep,
    )
    reader, delivery = NodeReader(bus, nodes, rights), OrderedDelivery(nodes.message_line)
    hub = Hub(nodes, rights, audience, reader, presence, delivery, intake, room, services.answer_scheduler, post)
    return mint, author, hub
