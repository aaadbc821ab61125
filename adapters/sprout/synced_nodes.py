"""Signed nodes that another gateway kept and `trellis sync` transfers, with the nodes that they need to be checked.

Messages that are signed nodes are transferred one by one, parents first. All other nodes, of identities, communities
and conversations, and those that a gateway made of messages of other protocols, come with the first message that needs
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from adapters.sprout.announced.intake import Intake
from adapters.sprout.forest.forest import NULL_ID, Community, Node, NodeError, Reply, decode, node_id
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.sessions.session import SproutSession
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire import base64url
from adapters.sprout.wire.codec import NodeLine, node_line
from gateway.core.errors import Incomplete, RequestError
from gateway.core.message import Message, PendingForm, TakingOver
from gateway.core.shared_ids import canonical_in, common_id

MAX_ABOVE: Final = 64  # nodes that come with one message
OTHER_CHANNEL: Final = (
    "here its community is another channel; gateways that name each other in sprout.gateways share their channels"
)
OTHER_COMMUNITY: Final = "it comes with nodes of another community"


class HandoverSession(SproutSession):
    """The session of a caller that transfers nodes.

    As for a link, the caller or the authors of the nodes need the rights. The caller's requests are paced.
    """

    def pace(self, channel: str) -> None:
        """Do nothing: each message is paced before it comes here."""


def nodes_above(nodes: NodeDirectory, message: Message) -> Iterator[bytes]:
    """The nodes, as base64url, that *message*, a reply, cannot be checked without, ancestors and authors first.

    Those that are messages are left out.
    """
    reply = decode(base64url.decode(message.wire or b""))
    assert isinstance(reply, Reply)
    chain: list[tuple[Node, bytes]] = []
    id = reply.parent
    while len(chain) < MAX_ABOVE // 2 and (found := _entity(nodes, id)) is not None:
        chain.append(found)
        id = found[0].parent if isinstance(found[0], Reply) else NULL_ID
    if not chain or not isinstance(chain[-1][0], Community):
        found = _entity(nodes, reply.community)
        chain += () if found is None else (found,)
    included: dict[str, None] = {}
    for node, wire in (*reversed(chain), (reply, b"")):
        if node.author not in included and (author := _entity(nodes, node.author)) is not None:
            included[node.author] = None
            yield author[1]
        if wire:
            yield wire


def _entity(nodes: NodeDirectory, id: str) -> tuple[Node, bytes] | None:
    """The node *id* and its base64url; None if it is not held, not signed yet, or a message that its author signed."""
    seq = None if id == NULL_ID else nodes.store.seq(id)
    entry = None if seq is None else nodes.store.entry(seq)
    if entry is None or (
        isinstance(entry, Message) and entry.protocol == NAME and not canonical_in(common_id(entry.id, entry.ids))
    ):
        return None
    line = nodes.entry_line(entry)
    data = line.data if isinstance(line, PendingForm) else line
    wire = b"" if data is None else data.partition(b" ")[2]
    return (decode(base64url.decode(wire)), wire) if wire else None


def take_over(
    nodes: NodeDirectory, intake: Intake, session: SproutSession, wire: bytes, above: Sequence[bytes], channel: str
) -> TakingOver:
    """Take the reply *wire* after the nodes *above* it, a node in each step; return whether it was new.

    `Adapter.take_over` says more.
    """
    line = _line(wire)
    node = _decode(line)
    if not isinstance(node, Reply):
        raise RequestError("the node is not a reply")
    lines = list[NodeLine]()
    for each in above[:MAX_ABOVE]:
        yield
        lines.append(_line(each))
    community = nodes.node(node.community) or next((_decode(each) for each in lines if each.id == node.community), None)
    if not isinstance(community, Community):
        raise Incomplete((node.community,))
    if intake.channel_of(node.community, community) != channel:
        raise RequestError(OTHER_CHANNEL)
    for line_above in lines:
        yield
        if not nodes.store.has(line_above.id):
            if _community(line_above) not in (node.community, NULL_ID):  # it would be published on another channel
                raise RequestError(OTHER_COMMUNITY)
            intake.take(line_above, session, requested=True)
    next_seq = session.bus.ledger.next_seq
    taken = intake.take(line, session)
    if taken.missing:
        raise Incomplete(taken.missing)
    if taken.reason or taken.dropped:
        raise RequestError(f"the node is refused: {taken.reason or taken.dropped}")
    return taken.seq >= next_seq


def _community(line: NodeLine) -> str:
    """The id of the community that the node belongs to; `NULL_ID` if it is an identity."""
    node = _decode(line)
    if isinstance(node, Reply):
        return node.community
    return line.id if isinstance(node, Community) else NULL_ID


def _line(wire: bytes) -> NodeLine:
    try:
        raw = base64url.decode(wire)
    except ValueError as error:
        raise RequestError(f"a node is not base64url: {error}") from None
    return node_line(node_id(raw), raw)


def _decode(line: NodeLine) -> Node:
    try:
        return decode(line.raw)
    except NodeError as error:
        raise RequestError(f"a node makes no sense: {error}") from None
