"""Puts together what finds and makes nodes, and what connections share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from adapters.sprout.forest.gateways import Gateways
from adapters.sprout.forest.openpgp import Key
from adapters.sprout.hub.audience import Audience
from adapters.sprout.hub.intake import Intake
from adapters.sprout.hub.nodes import Nodes
from adapters.sprout.hub.presence import Presence
from adapters.sprout.hub.reader import Reader
from adapters.sprout.hub.rights import Rights
from adapters.sprout.hub.shared import Shared
from adapters.sprout.hub.telling import Telling
from adapters.sprout.hub.waiting import Room
from adapters.sprout.hub.whose import Whose
from adapters.sprout.mint.author import Author
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.signers import Signers
from adapters.sprout.store.directs import Directs
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.store import Store
from gateway.adapter import Services

from .settings import Settings


def assemble(
    services: Services, options: Settings, key: Key, name: str, titles: Mapping[str, str]
) -> tuple[Mint, Author, Shared]:
    """Make the parts, lower ones first. The gateway, called *name*, signs with *key*; *titles* are those of protocols.

    A part is given those that it needs, and none is given all of them.
    """
    bus, post = services.bus, services.post
    store, directs, room = Store(services.index, services.fact), Directs(bus.clock), Room()
    lineage, signers = Lineage(store, bus.clock, post), Signers(services)

    def came(id: str) -> None:
        """The node *id* is held from now on."""
        lineage.came(id)
        if room.is_awaited(id):
            post(partial(room.came, id))  # who brought it takes what waits on that connection first

    store.came = came
    rights = Rights(bus, store, services.access.has_any_right)
    audience = Audience(rights)
    mint = Mint(bus, store, signers, key, name, titles, audience.introduce)
    author = Author(services, store, lineage, directs, mint, signers, key)
    nodes = Nodes(bus, store, directs, lineage, author)
    whose = Whose(bus, options.identify)
    presence = Presence(bus, nodes, mint, author, whose, post, options.presence)
    gateways = Gateways(options.gateways, nodes.node)
    intake = Intake(
        *(bus, nodes, rights, audience, presence, whose, mint, author, gateways),
        partial(services.metrics.count, "faults"),
        direct=options.direct == "deliver",
        keep=services.keep,
    )
    reader, telling = Reader(bus, nodes, rights), Telling(nodes.said)
    shared = Shared(nodes, rights, audience, reader, presence, telling, intake, room, services.answer_scheduler, post)
    return mint, author, shared
