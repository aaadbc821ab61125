"""Decides which author a connection belongs to. Sprout has no login, so this is inferred, cautiously, from its nodes.

A signed node proves who wrote it, and nothing about who sends it: relays send everybody's. An identified connection
(docs/protocols.md, "Who a Sprout connection is") gets only what a genuine client needs: direct messages to its author,
and presence. It never gets a right to read by it.
"""

from __future__ import annotations

from typing import Final, Literal

from adapters.sprout.forest.forest import Reply
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bus import Bus
from gateway.core.message import LATE_AFTER, Peer

from .connection import SproutConnection

Identify = Literal["fresh", "never"]

MAX_AGE: Final = 60_000  # ms between a node's creation and its arrival, either way: networks are slow
CLOCK_SKEW: Final = (
    2_000  # ms by which a client's clock may be behind: a node sent right after connecting counts as created on it
)


class ConnectionIdentifier:
    """Binds connections of *bus* to authors, as far as the setting *identify* allows."""

    def __init__(self, bus: Bus, identify: Identify) -> None:
        self._bus = bus
        self._enabled = identify == "fresh"

    def identify(self, session: SproutConnection, line: NodeLine, node: Reply, author: Peer) -> None:
        """Bind *session*, which sent a new *node* by *author*, to the author if it is the author's own connection.

        A bound connection that sends a new node by another author becomes a link, and belongs to nobody.
        """
        if line.answered or session.link or node.created < self._bus.clock() - LATE_AFTER:
            return
        if session.identity is not None or self._is_author(session, node, author):
            self._bus.bind(session, author)

    def _is_author(self, session: SproutConnection, node: Reply, author: Peer) -> bool:
        """Whether the node was just created, while this connection was open, and no other connection is its author's.

        So an impostor would have to send a node that it read elsewhere at once, on a connection that was open already;
        and nobody can join an author who is connected, except from the same network address.
        """
        now = self._bus.clock()
        return (
            self._enabled
            and max(session.since - CLOCK_SKEW, now - MAX_AGE) <= node.created <= now + MAX_AGE
            and all(
                other.principal.network == session.principal.network for other in self._bus.sessions_of(author.number)
            )
        )
