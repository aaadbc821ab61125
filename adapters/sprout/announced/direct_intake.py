"""Announced direct messages: never stored, and delivered once, from a connection of their author."""

from __future__ import annotations

from typing import Final

from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.identification import ConnectionIdentifier
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import PRIVATE
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import StatusCode
from gateway.core.bus import Bus
from gateway.core.message import Message

from .outcome import IncomingReply, NodeOutcome, message_of, sender_of

TO: Final = "to/1"
UNSTORED: Final = "a direct message is never stored"


class DirectIntake:
    """Delivers direct messages where they are *enabled*, by the setting `sprout.direct`."""

    def __init__(
        self,
        bus: Bus,
        nodes: NodeDirectory,
        rights: Rights,
        identifier: ConnectionIdentifier,
        mint: Mint,
        *,
        enabled: bool,
    ) -> None:
        self._bus = bus
        self._rights = rights
        self._identifier = identifier
        self._mint = mint
        self._enabled = enabled
        self._directs = nodes.directs

    def is_direct(self, reply: IncomingReply) -> bool:
        """Whether *reply* is for one peer alone: by its TWIG pairs, or because it replies to a direct message."""
        return TO in reply.pairs or PRIVATE in reply.pairs or self._directs.find(reply.node.parent) is not None

    def take(self, reply: IncomingReply, session: SproutConnection) -> NodeOutcome:
        """Deliver *reply* if this is the first announce of it, by a connection of its author; drop it otherwise."""
        line, node, pairs = reply.line, reply.node, reply.pairs
        asked = self._directs.find(node.parent)
        if TO not in pairs and asked is None:
            return self._drop(reply)
        if not self._enabled:
            return NodeOutcome(reason="direct messages are switched off")
        self._rights.check(session, "direct", reply.channel, node.author)
        if not self._is_first(reply) or not self._is_from_author(reply, session):
            return self._drop(reply)
        message = message_of(reply, sender_of(reply, self._bus.peers))
        number = self._target(pairs[TO]) if TO in pairs else None
        if asked is not None and number is None and self._directs.is_answerable(asked):
            number = asked.sender
        if number is not None:  # one without a target may be a copy of a node that was announced elsewhere
            self._identifier.identify(session, line, node, message.sender)
        if number is None or not self._reaches(message, number):
            refused = self._directs.refuse(line.id, session.peer.number)
            return self._drop(reply, StatusCode.UNKNOWN_NODE if refused else StatusCode.OK)
        for id in filter(None, (line.id, reply.canonical)):
            self._directs.add(id, node, message.sender.number)
        return NodeOutcome(dropped=UNSTORED)

    def _reaches(self, message: Message, number: int) -> bool:
        """Deliver *message* to the peer with *number*; return whether the peer is in the channel.

        Another gateway of a cluster tells later what it delivered: it counts as delivered if the peer is present there.
        """
        if not self._bus.presence.contains(message.channel, number):
            return bool(self._bus.direct(message, number))
        answers: list[int | None] = []
        self._bus.send_direct(message, number, answers.append)
        return not answers or bool(answers[0])

    def _is_first(self, reply: IncomingReply) -> bool:
        """Whether *reply* cannot have been delivered before."""
        delivered = self._directs.was_delivered(reply.line.id) or self._directs.was_delivered(reply.canonical)
        return not delivered and not self._directs.may_be_copy(reply.node.created)

    def _is_from_author(self, reply: IncomingReply, session: SproutConnection) -> bool:
        """Whether *session* is the author's: by its identity or, without one, because the reply cannot be a copy."""
        if session.identity is not None:
            return session.identity.identity == reply.node.author
        can_be_copy = session.link or reply.line.answered
        return not can_be_copy and self._directs.identifies_author(reply.node.created)

    def _drop(self, reply: IncomingReply, status: int = StatusCode.OK) -> NodeOutcome:
        """Drop a private node; replies to it are private too."""
        self._directs.forget(reply.line.id, reply.node)
        return NodeOutcome(status=status, dropped=UNSTORED)

    def _target(self, value: bytes) -> int | None:
        """The number of the peer that `to/1` names, in decimal or by its author's node id; None if it is unknown."""
        text = value.decode(errors="replace")
        if text.isascii() and text.isdigit():
            return int(text) if len(text) < 19 else None
        peer = self._bus.peers.find(NAME, text)
        return self._mint.peer_number(text) if peer is None else peer.number
