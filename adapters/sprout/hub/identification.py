"""Whose connection it is. Sprout has no login, so this is a guess from what arrives, and a narrow one.

A signed node proves who wrote it, and nothing about who brings it: relays bring everybody's. What a connection is
given as somebody (docs/protocols.md, "Who a Sprout connection is") is only what a genuine client could not do without:
direct messages to its author, and its place among those who are present. It never gets a right to read by it.
"""

from __future__ import annotations

from typing import Final, Literal

from adapters.sprout.forest.forest import Reply
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bus import Bus
from gateway.core.message import LATE_AFTER, Peer

from .connection import SproutConnection

Identify = Literal["fresh", "never"]

MAX_AGE: Final = 60_000  # ms between a node's making and its arrival, either way: lines are slow
CLOCK_SKEW: Final = (
    2_000  # ms by which a client's clock may be behind, so that what it says at once is from its connection
)


class ConnectionIdentifier:
    """Takes connections of *bus* for those of authors, as far as *identify* allows."""

    def __init__(self, bus: Bus, identify: Identify) -> None:
        self._bus = bus
        self._enabled = identify == "fresh"

    def identify(self, session: SproutConnection, line: NodeLine, node: Reply, author: Peer) -> None:
        """*session* brought a *node* by *author* that was never here: is it the author's, or a link of several?

        A connection that is somebody's and brings what another one says is a link from then on, and nobody's.
        """
        if line.answered or session.link or node.created < self._bus.clock() - LATE_AFTER:
            return
        if session.identity is not None or self._is_author(session, node, author):
            self._bus.bind(session, author)

    def _is_author(self, session: SproutConnection, node: Reply, author: Peer) -> bool:
        """Whether the node was made while this connection was open, a moment ago, and nobody else is its author.

        So a node that was read elsewhere has to be brought at once and by who was connected already, and nobody can
        join an author who is here, but from the same network address.
        """
        now = self._bus.clock()
        return (
            self._enabled
            and max(session.since - CLOCK_SKEW, now - MAX_AGE) <= node.created <= now + MAX_AGE
            and all(
                other.principal.address == session.principal.address for other in self._bus.sessions_of(author.number)
            )
        )
