"""What all Sprout connections share: who is there, who hears what, and the nodes that are held."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from adapters.sprout.forest.forest import Node, decode
from adapters.sprout.mint.author import Author
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.signers import Made
from adapters.sprout.store.directs import Directs
from adapters.sprout.store.held import Held, Recently
from adapters.sprout.store.lineage import Lineage
from adapters.sprout.store.peek import expiration_of
from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import COMMUNITY, IDENTITY, NAME, Spot
from gateway.core.bus import Bus
from gateway.core.errors import Forbidden, RequestError, UnknownChannel
from gateway.core.message import Form, Message, Pending
from gateway.core.outflow import Outflow
from gateway.core.principal import Principal
from gateway.core.session import Session
from gateway.storage.record import Entry, Fact, unbinary

from .presence import Presence, Tell
from .reader import Reader
from .telling import Telling
from .waiting import Room
from .whose import Identify, Whose

if TYPE_CHECKING:
    from .session import SproutSession

PEER: Final = "sprout:peer"  # who is dialled: the operator chose it, and many speak through it, so it is never paced


class Relay:
    """The connections and the forest. *known* tells who may do anything; `mint` and `author` are set once made.

    *outflow* gives long answers their turns, *post* runs a call when the loop comes to it.
    """

    mint: Mint
    author: Author

    def __init__(
        self,
        bus: Bus,
        store: Store,
        directs: Directs,
        known: Callable[[Principal], bool],
        identify: Identify,
        presence: Tell,
        outflow: Outflow,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.bus = bus
        self.outflow = outflow
        self.post = post
        self.known = known
        self.store = store
        self.directs = directs
        self.sessions: dict[SproutSession, None] = {}
        self.lineage = Lineage(store, bus.clock, post)
        store.came = self._came
        self.telling = Telling(self.said)
        self.reader = Reader(self)
        self.presence = Presence(self, presence)
        self.whose = Whose(bus, identify)
        self.room = Room()
        self._held = Recently()

    def _came(self, id: str) -> None:
        """The node *id* is held from now on."""
        self.lineage.came(id)
        if self.room.is_awaited(id):
            self.post(partial(self.room.came, id))  # who brought it takes what waits on that connection first

    # Telling

    def tell(self, line: bytes, channel: str = "", *, skip: Session | None = None) -> None:
        """Announce an identity, or the community of *channel*, to every connection but one that may know of it."""
        for session in self.sessions:
            if session is not skip and (self.may_know(session, channel) if channel else self.known(session.principal)):
                session.announce(line)

    def introduce(self, made: Made, channel: str) -> None:
        """Announce a node that is being made: at its place to who listens to *channel*, to others once it is there."""
        others = []
        for session in self.sessions:
            if channel in session.channels:
                session.announce(made.line)
            elif self.known(session.principal):
                others.append(session)

        def tell_others() -> None:
            if made.line.data is not None:
                for session in others:
                    session.announce(made.line.data)

        made.line.when_done(tell_others)

    def settled(self, channel: str) -> None:
        """*channel* exists: those who wait for its community join, and where it has none it gets one."""
        community = self.bus.channels.address(NAME, channel)
        if community is None:
            self.mint.community(channel)
            return
        self.founded(community)

    def founded(self, community: str) -> None:
        """*community* is a channel, or the same as one, from now on."""
        for session in list(self.sessions):
            session.founded(community)

    def is_founded(self, channel: str) -> bool:
        """Whether *channel* has a community, or will in a moment."""
        return self.bus.channels.address(NAME, channel) is not None or self.mint.is_making(channel)

    # Rights

    def may_know(self, session: Session, channel: str) -> bool:
        """Whether a connection may know that there is *channel*."""
        return any(self.bus.allowed(session.principal, verb, channel) for verb in ("subscribe", "history", "publish"))

    def may_read(self, session: Session, spot: Spot) -> bool:
        """Whether a connection may read the node at *spot*."""
        if spot.type == IDENTITY:
            return self.known(session.principal)
        if spot.type == COMMUNITY:
            channel = self.channel(spot.key)
            return channel is None or self.may_know(session, channel)
        return self.bus.allowed(session.principal, "history", spot.channel)

    def admit(self, session: Session, verb: str, channel: str, author: str | None = None) -> None:
        """Raise `Forbidden` unless a connection may *verb* on *channel*; the rate was asked before.

        What a node says may be said as well where its *author* may say it, whoever brings it.
        """
        if self.bus.allowed(session.principal, verb, channel):
            return
        if author is None or not self.bus.allowed(_as_author(session, author), verb, channel):
            raise Forbidden(verb, channel)

    def may_enter(self, session: Session, author: str) -> bool:
        """Whether the identity *author* may be brought: by who may do anything, or where the author may."""
        return self.known(session.principal) or self.known(_as_author(session, author))

    def pace(self, session: Session, channel: str) -> None:
        """Raise `Throttled` if a connection asks too often; *channel* is what it asks about."""
        if session.principal.name != PEER:
            session.pace(channel)

    # Finding

    def channel(self, community: str) -> str | None:
        """The channel that the community with this id is, or is the same as."""
        try:
            return self.bus.channels.channel(NAME, community)
        except UnknownChannel:
            return self._alias(community)

    def spot(self, id: str) -> Spot | None:
        """Where the node *id* stands."""
        seq = self.store.seq(id)
        return None if seq is None else self.store.spot(seq)

    def node(self, id: str) -> Node | None:
        """The node *id*, from the forest or a direct message; one from elsewhere without its signature."""
        held = self.held(id)
        return None if held is None else held.node

    def held(self, id: str) -> Held | None:
        """The node *id* and the message that it is."""
        held = self._held.get(id)
        if held is not None and not (self.store.incomplete and self.store.seq(id) is None):
            return held
        if (direct := self.directs.find(id)) is not None:
            return Held(direct.node)
        seq = self.store.seq(id)
        entry = None if seq is None else self.store.entry(seq)
        if entry is None:
            return None
        return self.hold(id, *self._read(entry))

    def hold(self, id: str, node: Node, message: str | None = None) -> Held:
        """Keep a node that children are likely to be asked for."""
        held = Held(node, message)
        self._held.add(id, held)
        return held

    def forget(self, id: str, seq: int, what: str) -> None:
        """The node *id* at *seq*, minted for *what* if it was minted, leaves the log."""
        self._held.drop(id)
        self.store.forget(id, seq, what)
        self.mint.forget(what)

    def line_at(self, seq: int) -> Form | None:
        """The line of the node at *seq*, kept or read again; None where it is none, retired, or expired."""
        lines = self.author.lines
        if (line := lines.get(seq)) is not None:
            return None if lines.has_expired(seq, self.bus.clock()) else line
        form = self.line(self.store.entry(seq))
        if isinstance(form, Pending):
            if not form.done or form.data is None:
                return form
            form = form.data
        if form is None:
            return None
        expires = expiration_of(form.partition(b" ")[2])
        lines.add(seq, form, expires)
        return form if expires is None or expires > self.bus.clock() else None

    def line_again(self, seq: int) -> Form | None:
        """The line of the node at *seq*, which was found before, expired or not; None where it cannot be read now."""
        try:
            return self.author.lines.get(seq) or self.line(self.store.entry(seq))
        except RequestError:
            return None

    def line(self, entry: Entry | None) -> Form | None:
        """The line of a record's node; None where it is none."""
        if isinstance(entry, Fact):
            return b"%b %b" % (entry.fields["native"][NAME].encode(), entry.fields["wire"].encode())
        if entry is None:
            return None
        return self.said(entry)

    def said(self, message: Message) -> Form:
        """The line of a message, made at the first need."""
        return message.forms.get(NAME) or message.form(NAME, self.form)

    def form(self, message: Message, _key: str) -> Form:
        """The line of a message, live or out of the log."""
        if message.protocol == NAME and message.wire is not None and message.native is not None:
            return b"%b %b" % (message.native[NAME].encode(), message.wire)
        return self.author.form(message)

    def _alias(self, community: str) -> str | None:
        seq = self.store.seq(community)
        entry = None if seq is None else self.store.entry(seq)
        return entry.fields.get("alias") if isinstance(entry, Fact) else None

    def _read(self, entry: Entry) -> tuple[Node, str | None]:
        if isinstance(entry, Fact):
            return decode(unbinary(entry.fields["wire"])), entry.fields.get("copy")
        return self.author.reply(entry), entry.id


def _as_author(session: Session, author: str) -> Principal:
    """Who *author* is to `auth.grants`, from where *session* comes."""
    return session.principal._replace(name=f"{NAME}:{author}", key="")
