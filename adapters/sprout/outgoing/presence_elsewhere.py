"""Announcements of presence that Arbor's authors made at other gateways of a cluster.

Each comes as its line and is checked as if it had come from a client. The nodes that it is checked with are in the log,
and may come a moment later than it does; until then it waits.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import Identity, Reply, decode_as
from adapters.sprout.forest.node_rules import ACTIVITY, OK, is_presence, validate
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine, SproutError, read_node_line
from gateway.core.bounded_maps import BoundedMap
from gateway.core.bus import Bus

from .presence import MAX_LINE, SproutPresence

MAX_WAITING: Final = 1_000  # announcements, at most 4 MiB
PATIENCE: Final = 10  # seconds, after which an announcement whose author is not known is dropped


class PresenceElsewhere:
    """Takes announcements for *presence*; *nodes* has their authors."""

    def __init__(self, bus: Bus, nodes: NodeDirectory, presence: SproutPresence) -> None:
        self._bus = bus
        self._nodes = nodes
        self._presence = presence
        self._waiting = BoundedMap[str, tuple[NodeLine, int]](MAX_WAITING)  # with the seconds that they waited

    def hear(self, data: bytes) -> None:
        """Take the line of a node; raises `SproutError` or `NodeError` if it announces no presence."""
        if len(data) > MAX_LINE:
            raise SproutError(f"an announcement of presence has at most {MAX_LINE:,} bytes")
        line = read_node_line(data)
        if not self._take(line):
            self._waiting[line.id] = line, 0

    def tick(self) -> None:
        """Look again for what was missing; call this once a second."""
        for id, (line, waited) in list(self._waiting.items()):
            self._waiting.pop(id)
            with suppress(SproutError):
                if not self._take(line) and waited < PATIENCE:
                    self._waiting[id] = line, waited + 1

    def _take(self, line: NodeLine) -> bool:
        """Take a node; False if something that it is checked with is not known yet."""
        node = decode_as(line.id, line.raw)
        if not isinstance(node, Reply) or not is_presence(node):
            raise SproutError("it announces no presence")
        channel, author = self._nodes.channel(node.community), self._nodes.node(node.author)
        parent, peer = self._nodes.find(node.parent), self._bus.peers.find(NAME, node.author)
        if channel is None or not isinstance(author, Identity) or parent is None or peer is None:
            return False
        if validate(node, line.raw, self._bus.clock(), author, parent.node) is not OK:
            raise SproutError("it is not valid")
        self._presence.forward(line.line, node, twig.decode(node.metadata.blob)[ACTIVITY], channel, peer)
        return True
