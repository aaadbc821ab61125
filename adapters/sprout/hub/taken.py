"""What became of a node that was announced, and a reply that is about to be published."""

from __future__ import annotations

from typing import NamedTuple

from adapters.sprout.forest.content import heard
from adapters.sprout.forest.forest import Identity, Node, Reply
from adapters.sprout.forest.validate import FORGED, Verdict
from adapters.sprout.mint.author import JSON, TRUE
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine, StatusCode
from gateway.core.message import Message, Peer


class Taken(NamedTuple):
    """What became of a node: where it is logged, why it was refused, or which nodes must come first.

    With none of them it is answered and goes nowhere; `aside` says why. `status` is what the announce is answered with.
    One that is *forged*, no genuine program would have shown.
    """

    seq: int = 0
    reason: str = ""
    missing: tuple[str, ...] = ()
    status: int = StatusCode.OK
    aside: str = ""
    forged: bool = False


class Said(NamedTuple):
    """A reply that may enter: its TWIG pairs, its channel, its author, its parent, and the message that this is.

    `late` is one that is history already; `anew` is its canonical id where it has another (`spelling`); one is `hidden`
    from Arbor where what it stands below is (`lineage`).
    """

    line: NodeLine
    node: Reply
    pairs: dict[str, bytes]
    channel: str
    author: Identity
    parent: Node
    above: str | None
    late: bool
    anew: str = ""
    hidden: bool = False


def refused(verdict: Verdict) -> Taken:
    """A node that does not hold to the rules."""
    return Taken(reason=verdict.reason, missing=verdict.missing, forged=verdict.reason == FORGED)


def message_of(said: Said, sender: Peer) -> Message:
    """The message that *said* is, by *sender*."""
    line, node = said.line, said.node
    return Message(
        said.channel,
        sender,
        NAME,
        heard(node.content, said.pairs.get(JSON) == TRUE, said.above),
        timestamp=node.created,
        parent=said.above,
        ids=(line.id,),
        native={NAME: line.id},
        wire=line.line[len(line.id) + 1 :],
        forms={NAME: line.line},
        late=said.late,
    )
