"""A connection that this gateway dials to another relay: both are to hold the same communities, and stay so.

What a `Peering` asks for is what genuine relays ask when they dial one (sprout-go's Worker): the list of communities,
then for each of them a subscription and its newest nodes. What those lack, an author or an ancestor, is asked for as
on every other connection. Besides, what the other side lacks is announced to it: a relay that is dialled never asks.

Every community is followed once for each connection: those of the other side, ours, and those that come later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from gateway.adapter import Link
from gateway.message import Form, Pending
from gateway.session import Principal, Session

from . import codec
from .codec import MAX_NODES, NO_ID, Frame, NodeLine
from .intake import Intake
from .relay import Relay
from .session import MAX_OUTBOX, MAX_SUBSCRIPTIONS, Batch, SproutSession
from .store import COMMUNITY
from .waiting import PATIENCE

PRINCIPAL: Final = "sprout:peer"  # what `auth.grants` calls those whom this gateway dials
WINDOW: Final = 8  # communities that are caught up with at the same time
PLAIN: Final = "tcp://"  # before the address of a peer that has no TLS


class Address(NamedTuple):
    """Where a relay listens, and whether it speaks TLS."""

    host: str
    port: int
    tls: bool


def read_address(text: str) -> Address:
    """Read `host:port` (TLS) or `tcp://host:port` (plain); a `ValueError` says what is wrong."""
    host, colon, port = text.removeprefix(PLAIN).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT (with TLS) or {PLAIN}HOST:PORT (without)")
    return Address(host, int(port), not text.startswith(PLAIN))


class _Gap(NamedTuple):
    """A community that the other side is to get, but for what it has: *theirs*, ids of nodes."""

    channel: str
    theirs: frozenset[str]


class Peering(SproutSession):
    """The dialled side of a connection between two relays. It is a link: many speak through it."""

    def __init__(
        self, bus: Any, principal: Principal, relay: Relay, intake: Intake, refused: Callable[[str], None]
    ) -> None:
        super().__init__(bus, principal, relay, intake, refused)
        self.link = True
        self._asked: dict[int, Callable[[Frame], None]] = {}
        self._progress = bus.clock()  # when it last answered, or was asked after a silence
        self._theirs: frozenset[str] = frozenset()  # the communities that it listed
        self._listed = False
        self._followed: dict[str, None] = {}
        self._next_communities: deque[str] = deque()
        self._under_way = 0
        self._gaps: deque[_Gap] = deque()
        self._filling = False
        self.ask(codec.List(NO_ID, COMMUNITY, MAX_NODES), self._list_is_here)

    # What the shell and others of this adapter call

    @property
    def saturated(self) -> bool:
        """Whether what arrives has to wait: much later than elsewhere.

        Two relays that each read nothing until the other has read would wait for ever; so the one that dialled reads
        on while its own announces wait, up to half of what may wait at all.
        """
        return self._slow or self._answering or self.bus.congested or self._size >= MAX_OUTBOX // 2

    def tick(self, now: int) -> None:
        """Hang up on who does not answer; it is dialled again."""
        if self._asked and now - self._progress > PATIENCE:
            self.close(1002, "it does not answer")
        super().tick(now)

    def founded(self, community: str) -> None:
        """A community is a channel: exchange what there is of it, once."""
        if self._listed and community not in self._followed and len(self._followed) < MAX_SUBSCRIPTIONS:
            self._followed[community] = None
            self._next_communities.append(community)
            self._advance()

    def ask(self, frame: Frame, then: Callable[[Frame], None]) -> None:
        """Send a request; *then* is called with its answer, once the nodes in that were taken."""
        if not self._asked:
            self._progress = self.bus.clock()
        id = self._next()
        self._asked[id] = then
        self.send(codec.encode(frame._replace(id=id)))

    def report(self) -> dict[str, Any]:
        """How far the two are, for `GET /v1/stats`."""
        behind = len(self._next_communities) + self._under_way
        return {"communities": len(self._followed), "behind": behind, "caughtUp": self._listed and not behind}

    # Answers

    def _begin(self, frame: Frame) -> Callable[[], None]:
        if isinstance(frame, codec.Response | codec.Status) and (then := self._asked.pop(frame.id, None)) is not None:
            self._progress = self.bus.clock()
            return partial(self._heard, Batch(_nodes(frame), 0), frame, then)
        return super()._begin(frame)

    def _heard(self, batch: Batch, frame: Frame, then: Callable[[Frame], None]) -> None:
        self._enter(batch)  # where that has to wait, this is called again
        then(frame)

    def _list_is_here(self, frame: Frame) -> None:
        """It told its communities: those and ours are to be the same."""
        self._listed = True
        self._theirs = _ids(frame)
        for spot in self._store.of_type(COMMUNITY, MAX_SUBSCRIPTIONS):  # one that waits for its author is founded later
            self.founded(spot.key)

    def _advance(self) -> None:
        while self._next_communities and self._under_way < WINDOW:
            self._follow(self._next_communities.popleft())

    def _follow(self, community: str) -> None:
        """Subscribe both sides to a community, and ask for the newest of it."""
        channel = self._relay.channel(community)
        if channel is None or not self.bus.allowed(self.principal, "subscribe", channel):
            return
        self._under_way += 1
        self.wanted[community] = None
        self.join(channel)
        if community not in self._theirs:
            self._introduce(community)
        self.ask(codec.Subscribe(NO_ID, community), _nothing)
        self.ask(codec.LeavesOf(NO_ID, community, MAX_NODES), partial(self._leaves_are_here, channel))

    def _leaves_are_here(self, channel: str, frame: Frame) -> None:
        """It told what it has of a community: the rest of ours is announced."""
        self._gaps.append(_Gap(channel, _ids(frame)))
        if not self._filling:
            self._filling = True
            self.stream(self._missing())

    # What it lacks

    def _introduce(self, community: str) -> None:
        """Announce a community, its author first."""
        node = self._relay.node(community)
        for id in () if node is None else (node.author, community):
            spot = self._relay.spot(id)
            line = None if spot is None else self._relay.line(self._store.entry(spot.seq))
            if line is not None:
                self.announce(line)

    def _missing(self) -> Iterator[Form]:
        """What it lacks, oldest first, made as fast as it reads; neighbours leave in one announce."""
        while self._gaps:
            gap = self._gaps.popleft()
            if self.bus.allowed(self.principal, "history", gap.channel):
                for place in reversed(self._store.in_channel(gap.channel, MAX_NODES)):
                    line = self._relay.line(self._store.entry(place.seq))
                    if line is not None and _id_of(line) not in gap.theirs:
                        yield line
            self._under_way -= 1
            self._advance()
        self._filling = False


def link(name: str, open: Callable[[type[SproutSession], Principal], SproutSession], **tls: Any) -> Link:
    """The link to the peer at *name*, an address; *tls* says how certificates are checked (`gateway.adapter.Link`)."""
    host, port, secure = read_address(name)
    return Link(name, host, port, lambda: open(Peering, Principal(PRINCIPAL, host)), _report, secure, **tls)


def _report(session: Session) -> dict[str, Any]:
    assert isinstance(session, Peering)
    return session.report()


def _id_of(line: Form) -> str:
    """The id on *line*; none where that is still being made, and so was never shown."""
    data = line.data if isinstance(line, Pending) else line
    return (data or b"").partition(b" ")[0].decode()


def _ids(frame: Frame) -> frozenset[str]:
    return frozenset(line.id for line in _nodes(frame))


def _nodes(frame: Frame) -> tuple[NodeLine, ...]:
    return frame.nodes if isinstance(frame, codec.Response) else ()


def _nothing(_frame: Frame) -> None:
    """The answer says nothing new."""
