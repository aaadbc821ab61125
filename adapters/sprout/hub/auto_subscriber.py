"""Communities that begin while a relay is connected, of which it would hear nothing until it dials again.

A genuine relay that dials in, or a client like wisteria, asks for all communities when it connects, and subscribes to
each of them. To those that begin later it never subscribes, here or on its own side: it drops the replies that are
announced to it, and announces none. So it is subscribed to, by the same word: to it that says that both follow. Its
answer shows that it does, and then it is told as if it had asked. Who subscribes to some communities only has chosen.
"""

from __future__ import annotations

from typing import Final

from adapters.sprout.store.tables import COMMUNITY
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_NODES, NO_ID

from .batch import NodeBatch
from .connection import SproutConnection
from .nodes import NodeDirectory
from .rights import Rights

MAX_FOLLOWED: Final = (
    256  # communities, the newest, to all of which a relay has subscribed; and nodes of a new one at first
)


class AutoSubscriber:
    """What *session* follows by itself: nothing, unless it asked for all communities."""

    def __init__(self, session: SproutConnection, nodes: NodeDirectory, rights: Rights) -> None:
        self._session = session
        self._nodes = nodes
        self._rights = rights
        self._listed: set[str] | None = None
        self._left: set[str] = set()  # of these, those to which it did not try to subscribe yet
        self._new_communities: dict[str, None] = {}
        self._asked: dict[int, str] = {}
        self._leaves: set[int] = set()

    def peer_lists(self, frame: codec.List) -> None:
        """The peer asks for communities: for all of them, if it is one that follows all."""
        if frame.node_type == COMMUNITY and frame.quantity >= MAX_NODES:
            may, is_complete = self._rights.may_read, self._nodes.lineage.is_complete
            infos = self._nodes.store.of_type(COMMUNITY, MAX_FOLLOWED)
            self._listed = {info.key for info in infos if may(self._session, info) and is_complete(info.seq)}
            self._left = self._listed - self._session.wanted.keys()

    def community_added(self, community: str) -> None:
        """A community is a channel from now on."""
        if self._listed is not None and community not in self._listed and community not in self._session.wanted:
            self._new_communities[community] = None
            self.subscribe()

    def peer_subscribes(self, community: str) -> None:
        """The peer asks to follow a community, whether it may or not."""
        self._left.discard(community)

    def subscribe(self) -> None:
        """Subscribe the peer to what began, once it has asked for all that it was told of."""
        if self._new_communities and not self._left:
            begun, self._new_communities = self._new_communities, {}
            for community in begun:
                self._asked[self._session.request(codec.Subscribe(NO_ID, community))] = community

    def handle_status(self, frame: codec.Status) -> None:
        """The peer follows a community, if it says so: it is told of it, and what it has of it is asked for."""
        community = self._asked.pop(frame.id, None)
        session = self._session
        if community is None or frame.code != codec.StatusCode.OK or len(session.wanted) >= session.bus.subscriptions:
            return
        session.wanted[community] = None
        session.community_added(community)
        self._leaves.add(session.request(codec.LeavesOf(NO_ID, community, MAX_FOLLOWED)))

    def is_expected(self, id: int) -> bool:
        """Whether the request *id* is one of these, and not answered yet."""
        return id in self._leaves

    def batch_of(self, frame: codec.Response) -> NodeBatch:
        """The nodes that the peer has of a community."""
        self._leaves.discard(frame.id)
        return NodeBatch(frame.nodes, len(frame.unreadable))
