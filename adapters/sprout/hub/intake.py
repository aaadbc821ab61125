"""What becomes of a node that somebody announces: known, refused, waiting for others, logged, published, or direct."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

from adapters.sprout.forest import twig
from adapters.sprout.forest.canonical import CANONICAL_PREFIX, canonical_id
from adapters.sprout.forest.forest import NO_PAIRS, Community, Identity, Node, NodeError, Reply, decode_as
from adapters.sprout.forest.trusted_gateways import CHANNEL, TrustedGateways
from adapters.sprout.forest.validate import ACTIVITY, EXPIRED, OK, expires_at, is_presence, validate
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ORIGIN, PRIVATE, ReplySigner
from adapters.sprout.store.lineage import UNKNOWN_ID
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine, StatusCode
from gateway.core.bus import MAX_ID, Bus
from gateway.core.contracts import Receipt
from gateway.core.errors import Forbidden, Throttled, TooManyChannels, Unavailable, UnknownChannel
from gateway.core.message import LATE_AFTER, Peer

from .audience import Audience
from .connection import SproutConnection
from .identification import ConnectionIdentifier
from .naming import channel_name
from .nodes import NodeDirectory
from .outcome import IncomingReply, NodeOutcome, message_of, refusal
from .presence import SproutPresence
from .rights import Rights

TO: Final = "to/1"
UNSTORED: Final = "a direct message is never stored"
FAULT: Final = "the gateway has a fault"  # why a node is refused that shows one

logger = logging.getLogger(__name__)

_REFUSALS: Final = (Forbidden, UnknownChannel, TooManyChannels)


class Intake:
    """Takes nodes in. What it does raises `Throttled` or `Unavailable` where a node is to be taken later.

    Nothing else is raised: a node that shows a fault of ours is refused, logged and counted by *fault*, and the
    connection, the link or the import it came by goes on.
    """

    def __init__(
        self,
        bus: Bus,
        nodes: NodeDirectory,
        rights: Rights,
        audience: Audience,
        presence: SproutPresence,
        identifier: ConnectionIdentifier,
        mint: Mint,
        signer: ReplySigner,
        gateways: TrustedGateways,
        fault: Callable[[str], None],
        *,
        direct: bool = True,
        keep: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._bus = bus
        self._nodes = nodes
        self._rights = rights
        self._audience = audience
        self._presence = presence
        self._identifier = identifier
        self._mint = mint
        self._signer = signer
        self._fault = fault
        self._gateways = gateways
        self._store = nodes.store
        self._directs = nodes.directs
        self._lineage = nodes.lineage
        self._direct_allowed = direct
        self._keep = keep  # ms
        self.kept_since = 0  # ms; of what was made earlier, nobody can tell whether it was here before

    def take(self, line: NodeLine, session: SproutConnection, *, asked: bool = False) -> NodeOutcome:
        """Take the node that *session* announced on a *line*.

        A reply older than what is kept goes nowhere, unless it was *asked* for: something that is kept is below it.
        """
        return self.take_run((line,), session, asked=asked)[0]

    def take_run(
        self, lines: Sequence[NodeLine], session: SproutConnection, *, asked: bool = False
    ) -> list[NodeOutcome]:
        """`take` the first of *lines*, and as many behind it as are said by its author at the same place of the forest.

        What is looked up, asked and published is so once for all of them. It never raises behind the first.
        """
        try:
            return self._take_run(lines, session, asked=asked)
        except (Throttled, Unavailable):
            raise
        except Exception:
            if len(lines) > 1:  # any of them may be the bad one
                return self.take_run(lines[:1], session, asked=asked)
            logger.exception("the node %s shows a fault of the gateway's; it is refused", lines[0].id)
            self._fault("node")
            return [NodeOutcome(reason=FAULT)]

    def _take_run(self, lines: Sequence[NodeLine], session: SproutConnection, *, asked: bool) -> list[NodeOutcome]:
        now = self._bus.clock()
        try:
            first = self._look(lines[0], session, now, asked=asked)
        except _REFUSALS as error:
            return [NodeOutcome(reason=type(error).__name__)]
        if isinstance(first, NodeOutcome):
            return [first]
        looks: list[IncomingReply | NodeOutcome] = [first]
        ids = {first.line.id}
        for line in lines[1:]:
            if line.id in ids or (look := self._look_beside(first, line, session, now, asked=asked)) is None:
                break
            ids.add(line.id)
            looks.append(look)
        try:
            taken = iter(self._publish([look for look in looks if isinstance(look, IncomingReply)], session))
        except _REFUSALS as error:
            taken = repeat(NodeOutcome(reason=type(error).__name__))
        return [next(taken) if isinstance(look, IncomingReply) else look for look in looks]

    def _look(self, line: NodeLine, session: SproutConnection, now: int, *, asked: bool) -> IncomingReply | NodeOutcome:
        """What is to be published of the node on *line*, or what became of it."""
        try:
            node = decode_as(line.id, line.raw)
        except NodeError as error:
            return NodeOutcome(reason=str(error), forged=True)
        seq = self._store.lookup(line.id, node.created)
        if seq is not None and not (asked and self._store.entry(seq) is None):  # what is damaged is logged once more
            return NodeOutcome(seq)
        canonical = canonical_id(line.id, node, line.raw)
        canonical = "" if canonical == line.id else canonical
        if canonical and (seq := self._store.seq_by_canonical(canonical)) is not None:
            return NodeOutcome(seq)
        if not asked and self._is_retired(node, now):
            return NodeOutcome(dropped="it is older than what is kept")
        if self._bus.congested:
            raise Unavailable("the disk does not keep up; try again in a moment")
        if isinstance(node, Reply):
            return self._reply(line, node, session, now, canonical, asked=asked)
        return self._root(line, node, session, canonical, asked=asked)

    def _look_beside(
        self, first: IncomingReply, line: NodeLine, session: SproutConnection, now: int, *, asked: bool
    ) -> IncomingReply | NodeOutcome | None:
        """The same of a plain reply by the author of *first* to the same parent: that much is looked up already.

        None for any other, for one that has to wait, and where one of the two is history and the other is not.
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
            or (not asked and self._is_retired(node, now))
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
        verdict = validate(node, line.raw, now, first.author, first.parent)
        return first._replace(line=line, node=node) if verdict is OK else refusal(verdict)

    def _is_retired(self, node: Node, now: int) -> bool:
        keep = self._keep()
        oldest = self.kept_since if keep is None else max(self.kept_since, now - keep)
        return isinstance(node, Reply) and node.created < oldest

    def _root(
        self, line: NodeLine, node: Identity | Community, session: SproutConnection, canonical: str, *, asked: bool
    ) -> NodeOutcome:
        """An identity or a community; an identity that has expired is of use to check what its author signed."""
        self._rights.pace(session, line.id)
        author = self._nodes.node(node.author) if isinstance(node, Community) else None
        now = 0 if asked and isinstance(node, Identity) else self._bus.clock()
        verdict = validate(node, line.raw, now, author, None)
        if verdict is not OK:
            return refusal(verdict)
        if isinstance(node, Community):
            seq = self._community(line, node, session)
        elif self._rights.may_enter(session, line.id):
            seq = self._store.log_entity(line, **({} if canonical else self._mint.recovered_fields(node)))
            self._audience.announce(line.line, skip=session)
        else:
            raise Forbidden("publish", "")
        self._nodes.cache(line.id, node)
        return NodeOutcome(seq)

    def _community(self, line: NodeLine, node: Community, session: SproutConnection) -> int:
        said = self._gateways.channel(node)
        if said is not None and self._mint.has_community(said):
            return self._alias(line, node, said, session)
        name = said or self._nodes.channel(line.id) or channel_name(line.id, node.name.text or "", self._bus.channels)
        self._rights.admit(session, "publish", name, node.author)
        self._bus.channels.reserve(name)  # raises where channels are only configured
        seq = self._store.log_entity(line)
        self._audience.announce(line.line, name, skip=session)
        self._bus.channels.assign(NAME, name, line.id)
        return seq

    def _alias(self, line: NodeLine, node: Community, channel: str, session: SproutConnection) -> int:
        """Another gateway made a community for *channel* before it knew of ours: what is below it is said there too."""
        self._rights.admit(session, "publish", channel, node.author)
        seq = self._store.log_entity(line, alias=channel)
        self._audience.announce(line.line, channel, skip=session)
        self._audience.community_added(line.id)
        return seq

    def _reply(
        self, line: NodeLine, node: Reply, session: SproutConnection, now: int, canonical: str, *, asked: bool
    ) -> IncomingReply | NodeOutcome:
        channel = self._nodes.channel(node.community)
        self._rights.pace(session, channel or line.id)
        author, parent = self._nodes.node(node.author), self._nodes.find(node.parent)
        verdict = validate(node, line.raw, now, author, None if parent is None else parent.node)
        if verdict.reason == EXPIRED and asked and is_presence(node):  # somebody answered it
            verdict = validate(node, line.raw, 0, author, None if parent is None else parent.node)
        if verdict is not OK:
            return refusal(verdict)
        if channel is None:
            return NodeOutcome(reason="its community is no channel")
        assert isinstance(author, Identity)
        assert parent is not None
        hidden, missing = self._hidden(node.parent)
        if missing and not asked:
            return NodeOutcome(missing=(missing,))
        pairs, late = twig.decode(node.metadata.blob), node.created < now - LATE_AFTER
        said = IncomingReply(line, node, pairs, channel, author, parent.node, parent.message, late, canonical, hidden)
        if (
            self._store.canonical_seq(line.id) is not None
            and (held := self._bus.find(CANONICAL_PREFIX + line.id)) is not None
        ):
            return self._same(said, held, session)
        if said.pairs or self._directs.find(node.parent) is not None:
            return self._special(said, session, asked=asked)
        self._rights.admit(session, "publish", channel, node.author)
        return said

    def _hidden(self, parent: str) -> tuple[bool, str]:
        """Whether the node *parent* is offered to nobody, and the id of what has to be brought for it."""
        seq = self._store.seq(parent) if self._store.incomplete else None
        if seq is None:
            return False, ""
        missing = self._lineage.missing(seq)
        return not self._lineage.is_complete(seq), "" if missing == UNKNOWN_ID else missing

    def _same(self, said: IncomingReply, held: Receipt, session: SproutConnection) -> NodeOutcome:
        """What is *held* already, of a node whose signature was written anew: this one is only to be found."""
        self._rights.admit(session, "publish", said.channel, said.node.author)
        self._nodes.cache(said.line.id, said.node, held.id)
        return NodeOutcome(self._store.log_entity(said.line, channel=said.channel, copy=held.id))

    def _special(self, said: IncomingReply, session: SproutConnection, *, asked: bool) -> NodeOutcome:
        """A reply that says more of itself than its text, or that is below a direct message."""
        line, node, pairs, channel, *_ = said
        if TO in pairs or PRIVATE in pairs or self._directs.find(node.parent) is not None:
            return self._direct(said, session)
        self._rights.admit(session, "publish", channel, node.author)
        if is_presence(node):
            if asked:  # what is said below it is said below what it stands below
                self._nodes.cache(line.id, node, said.above)
                copy = {} if said.above is None else {"copy": said.above}
                return NodeOutcome(self._store.log_entity(line, channel=channel, **copy))
            self._presence.receive(line, node, pairs[ACTIVITY], channel, session)
            return NodeOutcome(dropped="it only says who is there")
        if CHANNEL in pairs and node.depth == 1:  # a conversation that another gateway opened; nobody said it
            self._nodes.cache(line.id, node)
            recovered_fields = {} if said.canonical else self._mint.recovered_fields(node, channel)
            return NodeOutcome(self._store.log_entity(line, channel=channel, **recovered_fields))
        origin = pairs.get(ORIGIN, b"").decode(errors="replace")
        if origin and (held := self._copied(origin)) is not None:
            self._nodes.cache(line.id, node, held.id)
            if not said.canonical and self._mint.has_own_key(said.author) and self._store.form_id(held.seq) is None:
                return NodeOutcome(self._store.log_form(held.seq, line))
            return NodeOutcome(self._store.log_entity(line, channel=channel, copy=held.id))
        return self._publish((said,), session, origin if origin and self._gateways.speaks_for(node.author) else "")[0]

    def _publish(self, run: Sequence[IncomingReply], session: SproutConnection, origin: str = "") -> list[NodeOutcome]:
        """What an author says to all at one place; *origin* is the id that the one node there is known by elsewhere."""
        sender = self._sender(run[0])
        messages = [message_of(said, sender) for said in run]
        first = messages[0]
        if run[0].hidden:
            for message in messages:
                message.undelivered += (NAME,)
        if origin:
            first.ids += (origin,)
        if run[0].canonical:
            first.ids += (CANONICAL_PREFIX + run[0].canonical,)
        self._identifier.identify(session, run[0].line, run[0].node, first.sender)
        self._bus.publish_run(messages, session)
        took, keep, hold = self._store.add_reply, self._signer.lines.add, self._nodes.cache
        for said, message in zip(run, messages, strict=True):
            line, node = said.line, said.node
            took(message, line.id, node)
            if said.canonical:
                self._store.add_canonical(said.canonical, message.seq, node)
            keep(message.seq, line.line, expires_at(node) if said.pairs else None)
            hold(line.id, node, message.id)
        return [NodeOutcome(message.seq) for message in messages]

    def _copied(self, origin: str) -> Receipt | None:
        """The message that is held, and that a node claims to be a copy of."""
        return self._bus.find(origin) if len(origin) <= MAX_ID and origin.isprintable() else None

    def _direct(self, said: IncomingReply, session: SproutConnection) -> NodeOutcome:
        """A node that is never stored; only the first announce by its author's own connection is handed over."""
        line, node, pairs, channel, *_ = said
        asked = self._directs.find(node.parent)
        if TO not in pairs and asked is None:
            return self._unstored(said)
        if not self._direct_allowed:
            return NodeOutcome(reason="direct messages are switched off")
        self._rights.admit(session, "direct", channel, node.author)
        handed = self._directs.was_delivered(line.id) or self._directs.was_delivered(said.canonical)
        fresh = not handed and not self._directs.may_be_copy(node.created)
        who = session.identity
        new = not session.link and not line.answered and self._directs.identifies_author(node.created)
        own = who.identity == node.author if who is not None else new
        if not fresh or not own:
            return self._unstored(said)
        message = message_of(said, self._sender(said))
        number = self._target(pairs[TO]) if TO in pairs else None
        if asked is not None and number is None and self._directs.is_answerable(asked):
            number = asked.sender
        if number is not None:  # what is for nobody may be a copy of what was said elsewhere
            self._identifier.identify(session, line, node, message.sender)
        if number is None or not self._bus.direct(message, number):
            refusal = self._directs.refuse(line.id, session.peer.number)
            return self._unstored(said, StatusCode.UNKNOWN_NODE if refusal else StatusCode.OK)
        for id in filter(None, (line.id, said.canonical)):
            self._directs.add(id, node, message.sender.number)
        return NodeOutcome(dropped=UNSTORED)

    def _unstored(self, said: IncomingReply, status: int = StatusCode.OK) -> NodeOutcome:
        """Drop a private node; what is below it is not answered to all either."""
        self._directs.forget(said.line.id, said.node)
        return NodeOutcome(status=status, dropped=UNSTORED)

    def _target(self, value: bytes) -> int | None:
        """The number of the peer that `to/1` names: in decimal, or by its author's node id."""
        text = value.decode(errors="replace")
        if text.isascii() and text.isdigit():
            return int(text) if len(text) < 19 else None
        peer = self._bus.peers.find(NAME, text)
        return self._mint.peer_number(text) if peer is None else peer.number

    def _sender(self, said: IncomingReply) -> Peer:
        return self._bus.peers.identity(NAME, said.node.author, said.author.name.text or None)
