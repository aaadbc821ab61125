"""Announced replies: which of them may be published, one by one and in runs by one author to one parent."""

from __future__ import annotations

from adapters.sprout.forest import twig
from adapters.sprout.forest.canonical import canonical_id
from adapters.sprout.forest.forest import NO_PAIRS, Identity, NodeError, Reply, decode_as
from adapters.sprout.forest.node_rules import EXPIRED, OK, is_presence, validate
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.hub.rights import Rights
from adapters.sprout.store.lineage import UNKNOWN_ID
from adapters.sprout.wire.codec import NodeLine
from gateway.core.errors import Throttled
from gateway.core.message import LATE_AFTER

from .horizon import RetentionHorizon
from .outcome import IncomingReply, NodeOutcome, refusal
from .publisher import ReplyPublisher
from .special_replies import SpecialReplies


class ReplyIntake:
    """Checks replies. Those that are plain text for a channel are left to `publish`; *special* takes all others."""

    def __init__(
        self,
        nodes: NodeDirectory,
        rights: Rights,
        horizon: RetentionHorizon,
        special: SpecialReplies,
        publisher: ReplyPublisher,
    ) -> None:
        self._nodes = nodes
        self._rights = rights
        self._horizon = horizon
        self._special = special
        self._store = nodes.store
        self._lineage = nodes.lineage
        self.publish = publisher.publish

    def check(
        self, line: NodeLine, node: Reply, session: SproutConnection, now: int, canonical: str, *, requested: bool
    ) -> IncomingReply | NodeOutcome:
        """The reply to be published, or what became of it; *canonical* is its canonical id if that is another."""
        channel = self._nodes.channel(node.community)
        self._rights.pace(session, channel or line.id)
        author, parent = self._nodes.node(node.author), self._nodes.find(node.parent)
        result = validate(node, line.raw, now, author, None if parent is None else parent.node)
        if result.reason == EXPIRED and requested and is_presence(node):  # somebody replied to it
            result = validate(node, line.raw, 0, author, None if parent is None else parent.node)
        if result is not OK:
            return refusal(result)
        if channel is None:
            return NodeOutcome(reason="its community is not a channel")
        assert isinstance(author, Identity)
        assert parent is not None
        hidden, missing = self._hidden(node.parent)
        if missing and not requested:
            return NodeOutcome(missing=(missing,))
        pairs, late = twig.decode(node.metadata.blob), node.created < now - LATE_AFTER
        reply = IncomingReply(
            line, node, pairs, channel, author, parent.node, parent.message_id, late, canonical, hidden
        )
        if (outcome := self._special.take(reply, session, requested=requested)) is not None:
            return outcome
        self._rights.check(session, "publish", channel, node.author)
        return reply

    def check_next(
        self, first: IncomingReply, line: NodeLine, session: SproutConnection, now: int, *, requested: bool
    ) -> IncomingReply | NodeOutcome | None:
        """Check a plain reply by the author of *first* to the same parent: both were looked up already.

        None for any other node, for one that has to wait, and where one of the two is late and the other is not.
        """
        try:
            node = decode_as(line.id, line.raw)
        except NodeError:
            return None
        other = first.node
        if (
            type(node) is not Reply
            or node.parent != other.parent
            or node.author != other.author
            or node.metadata is not NO_PAIRS
            or first.line.answered != line.answered
            or first.late != (node.created < now - LATE_AFTER)
            or (not requested and self._horizon.is_retired(node, now))
            or first.canonical
            or canonical_id(line.id, node, line.raw) != line.id
            or self._store.canonical_seq(line.id) is not None
        ):
            return None
        if (seq := self._store.lookup(line.id, node.created)) is not None:
            return NodeOutcome(seq)
        try:
            self._rights.pace(session, first.channel)
        except Throttled:
            return None
        result = validate(node, line.raw, now, first.author, first.parent)
        return first._replace(line=line, node=node) if result is OK else refusal(result)

    def _hidden(self, parent: str) -> tuple[bool, str]:
        """Whether the node *parent* is withheld from Arbor, and the id of the node that has to be brought for it."""
        seq = self._store.seq(parent) if self._store.incomplete else None
        if seq is None:
            return False, ""
        missing = self._lineage.missing(seq)
        return not self._lineage.is_complete(seq), "" if missing == UNKNOWN_ID else missing
