"""Subscribes relays to communities that begin while they are connected.

A genuine relay that dials in, or a client like wisteria, lists all communities when it connects, and subscribes to
each of them. It never subscribes to later ones, here or on its own side: it drops the replies that are announced to
it, and announces none. So the gateway sends it a `subscribe`, after which both sides count as subscribed for it; once
it answers with status 0, it gets what a subscriber gets. A peer that subscribed to some
communities only is not subscribed to others.
"""

from __future__ import annotations

from typing import Final

from adapters.sprout.arrivals.batch import NodeBatch
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.store.tables import COMMUNITY
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_NODES, NO_ID

# The newest communities that a relay must have subscribed to; and the nodes that are requested of a new community.
MAX_FOLLOWED: Final = 256


class AutoSubscriber:
    """The automatic subscriptions of *session*: none, unless it listed all communities."""

    def __init__(self, session: SproutConnection, nodes: NodeDirectory, rights: Rights) -> None:
        self._session = session
        self._nodes = nodes
        self._rights = rights
        self._listed: set[str] | None = None
        self._left: set[str] = set()  # those of `_listed` to which it has not tried to subscribe yet
        self._new_communities: dict[str, None] = {}
        self._asked: dict[int, str] = {}
        self._leaves: set[int] = set()

    def peer_lists(self, frame: codec.List) -> None:
        """Note which communities the peer gets, if it lists all of them."""
        if frame.node_type == COMMUNITY and frame.quantity >= MAX_NODES:
            may, is_complete = self._rights.may_read, self._nodes.lineage.is_complete
            infos = self._nodes.store.of_type(COMMUNITY, MAX_FOLLOWED)
            self._listed = {info.key for info in infos if may(self._session, info) and is_complete(info.seq)}
            self._left = self._listed - self._session.wanted.keys()

    def community_added(self, community: str) -> None:
        """Subscribe the peer to a new community, if it follows all."""
        if self._listed is not None and community not in self._listed and community not in self._session.wanted:
            self._new_communities[community] = None
            self.subscribe()

    def peer_subscribes(self, community: str) -> None:
        """Note that the peer tried to subscribe to a community, whether it may or not."""
        self._left.discard(community)

    def subscribe(self) -> None:
        """Subscribe the peer to new communities, once it has subscribed to all that it has listed."""
        if self._new_communities and not self._left:
            begun, self._new_communities = self._new_communities, {}
            for community in begun:
                self._asked[self._session.request(codec.Subscribe(NO_ID, community))] = community

    def handle_status(self, frame: codec.Status) -> None:
        """If the peer accepts a subscription, join it to the channel and request the nodes that it has."""
        community = self._asked.pop(frame.id, None)
        session = self._session
        if community is None or frame.code != codec.StatusCode.OK or len(session.wanted) >= session.bus.subscriptions:
            return
        session.wanted[community] = None
        session.community_added(community)
        self._leaves.add(session.request(codec.LeavesOf(NO_ID, community, MAX_FOLLOWED)))

    @property
    def is_asking(self) -> bool:
        """Whether the peer has not answered a subscription yet."""
        return bool(self._asked)

    def is_expected(self, id: int) -> bool:
        """Whether the request *id* for nodes is one of these, and not answered yet."""
        return id in self._leaves

    def batch_of(self, frame: codec.Response) -> NodeBatch:
        """The nodes that the peer has of a community, as a batch to be taken."""
        self._leaves.discard(frame.id)
        return NodeBatch(frame.nodes, len(frame.unreadable))
