"""What became of a node that was announced, and a reply that is about to be published."""

from __future__ import annotations

from typing import NamedTuple

from adapters.sprout.forest.content import decode_content
from adapters.sprout.forest.forest import Identity, Node, Reply
from adapters.sprout.forest.validate import FORGED, ValidationResult
from adapters.sprout.mint.reply_signer import JSON, TRUE
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine, StatusCode
from gateway.core.message import Message, Peer


class NodeOutcome(NamedTuple):
    """What became of a node: where it is logged, why it was refused, or which nodes must come first.

    With none of them it is answered and goes nowhere; `dropped` says why. `status` answers the announce.
    One that is *forged*, no genuine program would have shown.
    """

    seq: int = 0
    reason: str = ""
    missing: tuple[str, ...] = ()
    status: int = StatusCode.OK
    dropped: str = ""
    forged: bool = False


class IncomingReply(NamedTuple):
    """A reply that may enter: its TWIG pairs, its channel, its author, its parent, and the message that this is.

    `late` is one that is history already; `canonical` is its canonical id if that is another (`canonical`); one is
    `hidden` from Arbor if what it stands below is (`lineage`).
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


def refusal(verdict: ValidationResult) -> NodeOutcome:
    """A node that does not hold to the rules."""
    return NodeOutcome(reason=verdict.reason, missing=verdict.missing, forged=verdict.reason == FORGED)


def message_of(encode_content: IncomingReply, sender: Peer) -> Message:
    """The message that *said* is, by *sender*."""
    line, node = encode_content.line, encode_content.node
    return Message(
        encode_content.channel,
        sender,
        NAME,
        decode_content(node.content, encode_content.pairs.get(JSON) == TRUE, encode_content.above),
        timestamp=node.created,
        parent=encode_content.above,
        ids=(line.id,),
        native={NAME: line.id},
        wire=line.line[len(line.id) + 1 :],
        forms={NAME: line.line},
        late=encode_content.late,
    )
