"""What became of an announced node, and a reply that is about to be published."""

from __future__ import annotations

from typing import NamedTuple

from adapters.sprout.forest.content import decode_content
from adapters.sprout.forest.forest import Identity, Node, Reply
from adapters.sprout.forest.node_rules import FORGED, ValidationResult
from adapters.sprout.mint.reply_signer import JSON, TRUE
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine, StatusCode
from gateway.core.message import Message, Peer
from gateway.core.peers import PeerRegistry


class NodeOutcome(NamedTuple):
    """What became of a node: its sequence in the log, why it was refused, or which nodes must come first.

    With none of these the node was accepted but not kept; `dropped` says why. `status` is the code that answers the
    announce. `forged` marks a node that no genuine program would send.
    """

    seq: int = 0
    reason: str = ""
    missing: tuple[str, ...] = ()
    status: int = StatusCode.OK
    dropped: str = ""
    forged: bool = False


class IncomingReply(NamedTuple):
    """A valid reply: its TWIG pairs, its channel, its author, its parent, and `above`, the parent's message id.

    `late` marks a reply that is already history; `canonical` is its canonical id if that differs from its id (see
    `canonical`); `hidden` marks a reply whose parent is withheld from Arbor (see `lineage`).
    """

    line: NodeLine
    node: Reply
    pairs: dict[str, bytes]
    channel: str
    author: Identity
    parent: Node
    above: str | None
    late: bool
    canonical: str = ""
    hidden: bool = False


def refusal(result: ValidationResult) -> NodeOutcome:
    """The outcome for a node that is invalid, or whose author or parent is missing."""
    return NodeOutcome(reason=result.reason, missing=result.missing, forged=result.reason == FORGED)


def sender_of(reply: IncomingReply, peers: PeerRegistry) -> Peer:
    """The author of *reply* as a peer of the gateway."""
    return peers.identity(NAME, reply.node.author, reply.author.name.text or None)


def content_of(reply: IncomingReply) -> bytes:
    """The JSON value that *reply* carries."""
    return decode_content(reply.node.content, reply.pairs.get(JSON) == TRUE, reply.above)


def message_of(reply: IncomingReply, sender: Peer) -> Message:
    """The message that *reply* carries, by *sender*."""
    line, node = reply.line, reply.node
    return Message(
        reply.channel,
        sender,
        NAME,
        content_of(reply),
        timestamp=node.created,
        parent=reply.above,
        ids=(line.id,),
        native={NAME: line.id},
        wire=line.line[len(line.id) + 1 :],
        forms={NAME: line.line},
        late=reply.late,
    )
