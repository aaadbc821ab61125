"""The direct messages of the last minutes: who said them, so that a reply to one finds its way back.

Nothing here is ever on disk, and no text is kept. An entry is good for `DIRECT_ID_LIFETIME`; it is remembered for
longer, so that a reply that comes too late can be told from one to a node that nobody knows. So is a private node that
was handed over by another run of the gateway, or too long ago, once somebody shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from adapters.sprout.forest.forest import NO_PAIRS, Node, Reply
from gateway.core.bounded import BoundedMap
from gateway.core.bus import DIRECT_ID_LIFETIME
from gateway.core.message import LATE_AFTER

MAX_DIRECTS: Final = 10_000  # of each kind
NOBODY: Final = -1  # who said a direct message that is forgotten
REMEMBERED: Final = 12 * DIRECT_ID_LIFETIME  # ms


class DirectMessage(NamedTuple):
    """A direct message: its node without what it says, the number of the peer that said it, and when (ms)."""

    node: Node
    sender: int
    time: int


class DirectMessages:
    """Direct messages by the ids of their nodes; *clock* gives ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since = clock()
        self._directs = BoundedMap[str, DirectMessage](MAX_DIRECTS, self._forget)
        self._forgotten = BoundedMap[str, DirectMessage](MAX_DIRECTS)
        self._refused = BoundedMap[str, int](MAX_DIRECTS)
        self._latest = 0  # when the last of those was made that are known no more

    def add(self, id: str, node: Node, sender: int) -> None:
        """The node *id* has been handed over."""
        now = self._clock()
        self._directs[id] = DirectMessage(_without_content(node), sender, now)
        self._directs.drop_while(lambda direct: direct.time < now - REMEMBERED)

    def _forget(self, _id: str, direct: DirectMessage) -> None:
        self._latest = max(self._latest, direct.node.created)

    def forget(self, id: str, node: Node) -> None:
        """The node *id* is private, but not handed over, or nobody remembers by whom: nobody can answer it."""
        self._forgotten[id] = DirectMessage(_without_content(node), NOBODY, 0)

    def refuse(self, id: str, connection: int) -> bool:
        """The node *id* reached nobody; whether its announce on this *connection* is refused for that.

        A client tells all it holds whenever it connects, in one announce, and gives a community up whose announce is
        refused: what one connection has heard of is not told to the next.
        """
        first = self._refused.get(id)
        if first is None:
            first = self._refused[id] = connection
        return first == connection

    def find(self, id: str) -> DirectMessage | None:
        """The direct message *id*, good or expired."""
        return self._directs.get(id) or self._forgotten.get(id)

    def was_delivered(self, id: str) -> bool:
        """Whether the node *id* has been handed over, as far as anybody remembers."""
        return id in self._directs

    def may_be_copy(self, created: int) -> bool:
        """Whether a node made at *created* (ms) may have been handed over and be forgotten.

        That is one that is old or of a former run, or that says it is not made yet: it could come again in an hour.
        """
        now = self._clock()
        return not max(self._since, now - LATE_AFTER) <= created <= now + LATE_AFTER

    def identifies_author(self, created: int) -> bool:
        """Whether who announces one made at *created* (ms) can only be its author; it is not known to be a copy."""
        return created > self._latest

    def is_answerable(self, direct: DirectMessage) -> bool:
        """Whether somebody may still answer *direct*."""
        return direct.time >= self._clock() - DIRECT_ID_LIFETIME


def _without_content(node: Node) -> Node:
    """What has to be known of *node* where something is below it; up to 192 KiB less."""
    return replace(node, content=NO_PAIRS, metadata=NO_PAIRS, signature=b"") if isinstance(node, Reply) else node
