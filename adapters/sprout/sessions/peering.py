"""A connection that this gateway dials to another relay, to hold the same communities on both sides.

A `Peering` sends the requests that a genuine relay sends when it dials (sprout-go's Worker): the list of communities,
then for each of them a subscription and its newest nodes. Their missing authors and ancestors are requested as on every
other connection. It also announces what the other side lacks: a relay that is dialled never asks.

Its `exchange` says which channels' communities are exchanged, and which way; every part asks `exchanges`. A genuine
relay takes only replies of communities that were subscribed to on the connection, and what it has need not be
announced, so both requests are sent whichever way messages go.

Every community is exchanged once for each connection: those of the other side, those held here, and later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, NoReturn

from adapters.sprout.arrivals.batch import NodeBatch
from adapters.sprout.arrivals.waiting import REQUEST_TIMEOUT
from adapters.sprout.forest.forest import NULL_ID, NodeError, Reply, decode
from adapters.sprout.hub.rights import LINK_PRINCIPAL
from adapters.sprout.store.tables import COMMUNITY, NodeInfo
from adapters.sprout.wire import codec
from adapters.sprout.wire.codec import MAX_BODY, MAX_LINE, MAX_NODES, NO_ID, Frame
from gateway.adapter import OutboundLink
from gateway.core.bounded_maps import BoundedMap
from gateway.core.errors import Throttled
from gateway.core.message import Form
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.link_channels import ANY, Exchange
from gateway.storage.index_queries import PAGE

from .answer_batch import AnswerBatch
from .dialled_relays import SproutPeer, read_address
from .peer_knowledge import MAX_KNOWN, PeerKnowledge
from .session import MAX_OUTBOX, SproutSession
from .shared_parts import SproutParts

WINDOW: Final = 8  # communities that are exchanged at the same time
MAX_ANCESTRIES: Final = 32  # open requests for ancestors in one community
SLICE: Final = 64  # nodes of a response that are taken in one turn
MAX_REREQUESTED: Final = MAX_BODY // MAX_LINE  # nodes cut from an answer that are requested at a time: they fit
EVERYTHING: Final = Exchange(channels=(ANY,))


@dataclass
class _CatchUp:
    """A community that is being exchanged, and the nodes whose ancestors were requested."""

    channel: str
    asked: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # of these, those without a response


OnAnswer = Callable[[AnswerBatch, Frame], None]  # called with an answer, and again if it could not be finished


class Peering(SproutSession):
    """The dialling side of a connection between two relays. It is a link: it carries nodes of many authors."""

    def __init__(
        self, bus: Any, principal: Principal, parts: SproutParts, count_refusal: Callable[[str], None]
    ) -> None:
        super().__init__(bus, principal, parts, count_refusal)
        self.link = True
        self.exchange = EVERYTHING
        self._asked: dict[int, OnAnswer] = {}
        self._requested_authors = BoundedMap[str, None](MAX_KNOWN)  # authors that were requested, and answered
        self._peer_knowledge = PeerKnowledge(parts.nodes)
        self.post: Callable[[Callable[[], None]], None] = _ignore  # runs a call in a later turn of the loop
        self._sliced = False  # a response is being taken, and continues in a later turn
        self._progress = bus.clock()  # when it last answered, or was asked after a pause
        self._listed = False
        self._known: Iterator[list[NodeInfo]] | None = None  # communities that are here, and are not exchanged yet
        self._followed: dict[str, None] = {}
        self._next_communities: deque[str] = deque()
        self._in_progress = 0
        self._gaps: deque[_CatchUp] = deque()
        self._announcing = False
        self.ask(codec.List(NO_ID, COMMUNITY, MAX_NODES), self._on_list)

    # Called by the shell and by other parts of this adapter

    @property
    def saturated(self) -> bool:
        """Whether the next message has to wait, at a much higher mark than on other connections.

        Two relays that each stop reading until the other has read would wait for ever; so the dialling side keeps
        reading while its own announces wait, up to half of the limit of the outbox.
        """
        return self.overloaded or self.bus.congested

    @property
    def overloaded(self) -> bool:
        """Whether it has to wait for this relay, whatever the log does."""
        return self._throttled or self._responder.busy or self._size >= MAX_OUTBOX // 2

    @property
    def unwritable(self) -> bool:
        """False: its messages wait on the wire as long as the log fails."""
        return False

    def exchanges(self, verb: str, channel: str | None = None) -> bool:
        """Whether nodes of *channel*, or of any without one, may go the way that *verb* allows."""
        goes = self.exchange.sends if verb in ("subscribe", "history") else self.exchange.receives
        return goes and (channel is None or self.exchange.matches(channel))

    def tick(self, now: int) -> None:
        """Close the connection if the relay does not answer; it is dialled again. It need not speak first."""
        self.handshake = None
        if self._asked and now - self._progress > REQUEST_TIMEOUT:
            self.close(1002, "it does not answer")
        self._add_known()
        super().tick(now)

    def record_malformed(self) -> None:
        """Ignore malformed messages: the operator chose the relay, and refused nodes are counted."""

    def community_added(self, community: str) -> None:
        """Exchange the nodes of a new community, once."""
        channel = self._nodes.channel(community)
        if channel is None or not self.exchange.matches(channel):
            return
        if self._listed and community not in self._followed and len(self._followed) < self.bus.subscriptions:
            self._followed[community] = None
            self._next_communities.append(community)
            self._advance()

    def ask(self, frame: Frame, then: OnAnswer) -> None:
        """Send a request; *then* is called with its response."""
        if not self._asked:
            self._progress = self.bus.clock()
        self._asked[self.request(frame)] = then

    def _expects(self, id: int) -> bool:
        return id in self._asked or super()._expects(id)

    @property
    def _ignores_statuses(self) -> bool:
        return not self._asked and super()._ignores_statuses

    def report(self) -> dict[str, Any]:
        """The progress of the exchange, for `GET /v1/stats`."""
        behind, missing = len(self._next_communities) + self._in_progress, self._arrivals.missing_count
        caught_up = self._listed and self._known is None and not behind and not missing
        return {"communities": len(self._followed), "behind": behind, "missing": missing, "caughtUp": caught_up}

    # Answers

    def _begin(self, frame: Frame) -> Callable[[], None]:
        if isinstance(frame, codec.Announce) and not self.exchange.receives:
            return partial(self._decline, frame)
        if isinstance(frame, codec.Response | codec.Status) and (then := self._asked.pop(frame.id, None)) is not None:
            self._progress = self.bus.clock()
            batch = AnswerBatch(frame.nodes if isinstance(frame, codec.Response) else ())
            if isinstance(frame, codec.Response):
                batch.cut = frame.cut
                for _ in frame.unreadable:
                    self._count_refusal("malformed")
            self._peer_knowledge.add((*(line.id for line in batch.nodes), *batch.cut))
            return partial(then, batch, frame)
        return super()._begin(frame)

    def _decline(self, announce: codec.Announce) -> None:
        """Answer an announce whose nodes are not wanted, once."""
        if not announce.more:
            self.status(announce.id, codec.StatusCode.OK)

    def _step(self) -> bool:
        more = super()._step()
        if self._sliced:
            self._sliced = False
            self.post(self._go_on)  # or, without a loop, at the next tick
        return more

    def _go_on(self) -> None:
        self._throttled = False
        self.resume()
        self.wake()

    def _enter(self, batch: NodeBatch) -> None:
        """Take the next slice of a batch; raise `Throttled` if there is more, to be called again later."""
        rest = [batch.nodes.pop() for _ in range(len(batch.nodes) - SLICE)]
        try:
            super()._enter(batch)
        finally:
            batch.nodes.extend(reversed(rest))
        if rest:
            self._continue_later()

    def _on_list(self, batch: AnswerBatch, frame: Frame) -> None:
        """Take the relay's list of communities; then exchange these and those held here."""
        if not self.exchange.receives:
            batch.drop()
        if self._request_authors(batch, partial(self._on_list, batch, frame)):
            return
        self._enter(batch)
        if self._request_rest(batch, self._on_list):
            return
        self._listed = True
        self._known = self._nodes.store.pages_of_type(COMMUNITY, self.bus.subscriptions)
        self._add_known()

    def _add_known(self) -> None:
        """Exchange a page of the communities that are here, and the next one in a later turn of the loop."""
        for page in self._known or ():
            for info in page:
                self.community_added(info.key)
            if len(page) >= PAGE:
                self.post(self._add_known)  # or, without a loop, at the next tick
                return
        self._known = None

    def receive_eof(self) -> None:
        """The connection is closed."""
        self._known = None
        super().receive_eof()

    def _advance(self) -> None:
        while self._next_communities and self._in_progress < WINDOW:
            self._follow(self._next_communities.popleft())

    def _follow(self, community: str) -> None:
        """Subscribe both sides to a community, and request its newest nodes."""
        channel = self._nodes.channel(community)
        if channel is None or not self.bus.allowed(self.principal, "subscribe", channel):
            return
        self._in_progress += 1
        self.wanted[community] = None
        self.join(channel)
        if self.exchange.sends and (line := self._peer_knowledge.signed_line(community)) is not None:
            for each in self._peer_knowledge.with_ancestors(line):
                self.announce(each)
        self.ask(codec.Subscribe(NO_ID, community), _ignore)
        self.ask(codec.LeavesOf(NO_ID, community, MAX_NODES), partial(self._on_leaves, _CatchUp(channel)))

    def _on_leaves(self, gap: _CatchUp, batch: AnswerBatch, frame: Frame) -> None:
        """Take the relay's nodes of a community; then announce those that it lacks."""
        if not self.exchange.receives:
            batch.drop()
        again = partial(self._on_leaves, gap, batch, frame)
        if self._request_authors(batch, again) or self._request_ancestors(gap, batch, again):
            return
        self._enter(batch)
        if self._request_rest(batch, partial(self._on_leaves, gap)):
            return
        self._gaps.append(gap)
        if not self._announcing:
            self._announcing = True
            self.stream(self._nodes_to_announce())

    def _request_authors(self, batch: AnswerBatch, again: Callable[[], None]) -> bool:
        """Request the missing authors of a batch; return whether there are any. *again* is called with them here."""
        if batch.authors_requested:
            return False
        self._scan(batch)
        batch.authors_requested = True
        if not (missing := tuple(batch.authors)):
            return False

        def on_authors(answer: AnswerBatch, _frame: Frame) -> None:
            answer.requested_by_child = True
            for id in missing:
                self._requested_authors[id] = None  # those that it lacks are not requested again
            self._enter(answer)
            if not self._request_rest(answer, on_authors):
                again()

        self.ask(codec.Query(NO_ID, missing), on_authors)
        return True

    def _scan(self, batch: AnswerBatch) -> None:
        """Note the missing authors and the replies of the next slice of *batch*; raise `Throttled` if there is more."""
        for line in islice(batch.nodes, batch.scanned, batch.scanned + SLICE):
            batch.scanned += 1
            with suppress(NodeError):
                node = decode(line.raw)
                if node.author not in batch.authors and self._is_missing_author(node.author):
                    batch.authors[node.author] = None
                if isinstance(node, Reply):
                    batch.replies.append((line.id, node))
        if batch.scanned < len(batch.nodes):
            self._continue_later()

    def _is_missing_author(self, id: str) -> bool:
        return id != NULL_ID and id not in self._requested_authors and self._nodes.store.seq(id) is None

    def _is_orphan(self, id: str, node: Reply) -> bool:
        return self._nodes.store.seq(node.parent) is None and self._nodes.store.seq(id) is None

    def _continue_later(self) -> NoReturn:
        """Have the response that is being handled called again in a later turn of the loop."""
        self._sliced = True
        raise Throttled(0)

    def _request_ancestors(self, gap: _CatchUp, batch: AnswerBatch, again: Callable[[], None]) -> bool:
        """Request missing ancestors of nodes of a batch, some at a time; return whether there are any."""
        orphans: list[tuple[str, int]] = []
        for _ in range(min(SLICE, len(batch.replies))):
            id, node = batch.replies.popleft()
            if node.parent not in batch.ids and id not in gap.asked and self._is_orphan(id, node):
                orphans.append((id, node.depth))
                if len(orphans) == MAX_ANCESTRIES:
                    break
        if batch.replies and not orphans:
            self._continue_later()
        for id, depth in orphans:
            gap.asked.add(id)
            self.ask(codec.Ancestry(NO_ID, id, min(depth, MAX_NODES)), partial(self._on_ancestors, gap, id, again))
        gap.left = {id for id, _ in orphans}
        return bool(orphans)

    def _on_ancestors(
        self, gap: _CatchUp, id: str, again: Callable[[], None], batch: AnswerBatch, frame: Frame
    ) -> None:
        if self._request_authors(batch, partial(self._on_ancestors, gap, id, again, batch, frame)):
            return
        batch.requested_by_child = True
        self._enter(batch)
        if self._request_rest(batch, partial(self._on_ancestors, gap, id, again)):
            return
        gap.left.discard(id)
        if not gap.left:
            again()

    def _request_rest(self, batch: AnswerBatch, then: OnAnswer) -> bool:
        """Request some of the nodes cut from a response, each once; *then* takes them, and requests the rest."""
        some, rest = batch.cut[:MAX_REREQUESTED], batch.cut[MAX_REREQUESTED:]
        if not some:
            return False

        def on_some(answer: AnswerBatch, frame: Frame) -> None:
            answer.cut = rest
            answer.requested_by_child = batch.requested_by_child
            then(answer, frame)

        self.ask(codec.Query(NO_ID, some), on_some)
        return True

    # What the relay lacks

    def _nodes_to_announce(self) -> Iterator[Form]:
        """The nodes that the relay lacks, oldest first, made as fast as it reads."""
        while self._gaps:
            gap = self._gaps.popleft()
            if self._rights.allows(self, "history", gap.channel):
                for place in reversed(self._nodes.store.in_channel(gap.channel, MAX_NODES)):
                    if self._nodes.lineage.is_complete(place.seq):
                        yield from self._peer_knowledge.with_ancestors(self._nodes.line_at(place.seq))
            self._in_progress -= 1
            self._advance()
        self._announcing = False


Open = Callable[[type[SproutSession], Principal], SproutSession]


def link(peer: SproutPeer, open: Open, post: Callable[[Callable[[], None]], None], **tls: Any) -> OutboundLink:
    """The link to *peer*.

    *open* makes a session of a kind, *post* runs a call in a later turn of the loop, *tls* are the options of
    `gateway.adapter.OutboundLink` for certificates.
    """
    host, port, secure = read_address(peer.url)

    def dialled() -> SproutSession:
        session = open(Peering, Principal(LINK_PRINCIPAL, host))
        assert isinstance(session, Peering)
        session.post, session.exchange = post, peer
        return session

    return OutboundLink(peer.url, host, port, dialled, _report, secure, **tls)


def _report(session: Session) -> dict[str, Any]:
    assert isinstance(session, Peering)
    return session.report()


def _ignore(*_given: object) -> None:
    """Ignore a response; or a call that a loop would run, as `tick` continues without one."""
