"""The direct messages of the last minutes and their senders, so that replies to them can be routed.

Nothing here is ever on disk, and no text is kept. A message can be replied to for `DIRECT_ID_LIFETIME`; it is kept
longer, to tell a late reply from one to an unknown node. A private node that is announced again after it was delivered
in another run of the gateway, or too long ago, is remembered as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from adapters.sprout.forest.forest import NO_PAIRS, Node, Reply
from gateway.core.bounded_maps import BoundedMap
from gateway.core.directs import DIRECT_ID_LIFETIME
from gateway.core.message import LATE_AFTER

MAX_DIRECTS: Final = 10_000  # of each kind
NOBODY: Final = -1  # the sender of a direct message that is forgotten
REMEMBERED: Final = 12 * DIRECT_ID_LIFETIME  # ms


class DirectMessage(NamedTuple):
    """A direct message: its node without content, the number of the peer that sent it, and when (ms)."""

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
        self._latest = 0  # the latest creation time of a forgotten message

    def add(self, id: str, node: Node, sender: int) -> None:
        """Remember that the node *id*, by the peer with the number *sender*, was delivered."""
        now = self._clock()
        self._directs[id] = DirectMessage(_without_content(node), sender, now)
        self._directs.drop_while(lambda direct: direct.time < now - REMEMBERED)

    def _forget(self, _id: str, direct: DirectMessage) -> None:
        self._latest = max(self._latest, direct.node.created)

    def forget(self, id: str, node: Node) -> None:
        """Remember the private node *id* as one that nobody can reply to: it was not delivered, or not by this run."""
        self._forgotten[id] = DirectMessage(_without_content(node), NOBODY, 0)

    def refuse(self, id: str, connection: int) -> bool:
        """Remember that the node *id* reached nobody; return whether its announce on this *connection* is refused.

        A client announces all it holds whenever it connects, in one announce, and drops a community whose announce is
        refused. So only the first connection that announced the node gets the refusal.
        """
        first = self._refused.get(id)
        if first is None:
            first = self._refused[id] = connection
        return first == connection

    def find(self, id: str) -> DirectMessage | None:
        """The direct message *id*, whether it can still be replied to or not."""
        return self._directs.get(id) or self._forgotten.get(id)

    def was_delivered(self, id: str) -> bool:
        """Whether the node *id* is remembered as delivered."""
        return id in self._directs

    def may_be_copy(self, created: int) -> bool:
        """Whether a node created at *created* (ms) may have been delivered and forgotten since.

        This holds for a node that is old or older than this run, and for one from the future: it could come again in
        an hour.
        """
        now = self._clock()
        return not max(self._since, now - LATE_AFTER) <= created <= now + LATE_AFTER

    def identifies_author(self, created: int) -> bool:
        """Whether only the author can announce a node created at *created* (ms), which is not remembered."""
        return created > self._latest

    def is_answerable(self, direct: DirectMessage) -> bool:
        """Whether *direct* can still be replied to."""
        return direct.time >= self._clock() - DIRECT_ID_LIFETIME


def _without_content(node: Node) -> Node:
    """*node* without content, metadata and signature, up to 192 KiB less: replies to it need the rest only."""
    return replace(node, content=NO_PAIRS, metadata=NO_PAIRS, signature=b"") if isinstance(node, Reply) else node
