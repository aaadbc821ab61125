"""Who is there, in Arbor's words: invisible replies to a community that say that their author is active, or not.

Those of Arbor's own authors are passed on as they came, and are the author's word to everybody else. For peers of
other protocols the gateway writes them: when they come, when they leave and every `INTERVAL`, but only while somebody
on Arbor listens who is to be told. Changes are looked at once a second, so who comes and goes within it costs no
signature. Nothing of this is logged or found again, but who has just subscribed is told what holds; and a word that
somebody answers is kept for the answer's sake (`intake`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, Literal, NamedTuple, cast

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import Identity, Reply
from adapters.sprout.forest.validate import ACTIVITY, EXPIRATION, INVISIBLE, expiration, expires_at
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bounded import BoundedMap
from gateway.core.bus import Bus
from gateway.core.message import LATE_AFTER, Peer, PendingForm

from .connection import SproutConnection
from .identification import CLOCK_SKEW, ConnectionIdentifier
from .nodes import NodeDirectory

PresenceMode = Literal["tell", "silent"]

ACTIVE: Final = b"0"
INACTIVE: Final = b"1"
INTERVAL: Final = 5 * 60_000  # ms after which a peer that stays is said to be there again
VALIDITY: Final = 2 * INTERVAL  # ms for which a word holds that names no end
MAX_VALIDITY: Final = 60 * 60_000  # ms for which any word holds
MAX_PEERS: Final = 200  # of other protocols that are told of in one community
MAX_AUTHORS: Final = 1000  # of one community whose last word is kept
MAX_STATUSES: Final = 10_000  # of all communities together, at most 40 MiB
MAX_LINE: Final = 4096  # characters of a node that says no more than who is there
MAX_ANNOUNCED: Final = 2000  # words that newcomers are told in a second, some 4 ms
PACE: Final = 50  # nodes of one community that are signed in a second
LOOKED_AT: Final = 8_192  # peers that are looked at in one turn of the loop, some 2 ms
_PEERS_PER_COMMUNITY: Final = 128  # peers that take as long as a community without any


class PresenceStatus(NamedTuple):
    """The last that somebody said of himself, or the gateway of him: when (ms), and the line of it."""

    peer: Peer
    time: int
    line: PendingForm
    until: int = 0


class SproutPresence:
    """Passes on, keeps for a while, and writes who is in which community.

    All who listen are told, or where it is *silent* those who have told of themselves: to other clients each word is an
    empty message. A word that was made before the connection is not its client's own: all announce what they hold.
    """

    def __init__(
        self,
        bus: Bus,
        nodes: NodeDirectory,
        mint: Mint,
        signer: ReplySigner,
        identifier: ConnectionIdentifier,
        post: Callable[[Callable[[], None]], None],
        tell: PresenceMode,
    ) -> None:
        self._to_all = tell == "tell"
        self._bus = bus
        self._nodes = nodes
        self._mint = mint
        self._signer = signer
        self._identifier = identifier
        self._post = post
        self._received: dict[
            str, BoundedMap[str, PresenceStatus]
        ] = {}  # of Arbor's authors, by channel and author; the oldest first
        self._received_count = 0  # that were heard
        self._forgotten = 0  # the latest time of a word that was heard and is kept no more
        self._announced: dict[str, dict[int, PresenceStatus]] = {}  # of others, by channel and number; the oldest first
        self._changed: set[str] = set()
        self._due: dict[str, None] = {}  # of those, what is told of in this second
        self._newcomers: dict[str, dict[SproutConnection, set[int]]] = {}  # and of whom each has heard since it came

    # What Arbor says

    def receive(self, line: NodeLine, node: Reply, said: bytes, channel: str, session: SproutConnection) -> None:
        """Take what the author of a node *said* of himself, unless it is old, long, or the gateway's own word."""
        if not line.answered and not session.announces_presence and node.created >= session.since - CLOCK_SKEW:
            session.announces_presence = True
            for each in session.channels:
                self.joined(each, session)
        now = self._bus.clock()
        there = self._received.get(channel)
        last = None if there is None else there.get(node.author)
        if (
            said not in (ACTIVE, INACTIVE)
            or len(line.line) > MAX_LINE
            or not now - LATE_AFTER <= node.created <= now + LATE_AFTER
            or (last is not None and node.created <= last.time)
            or self._mint.minted_for(node.author) is not None
        ):
            return
        peer, until = self._peer(node.author), min(expires_at(node) or now + VALIDITY, now + MAX_VALIDITY)
        self._keep(channel, node.author, PresenceStatus(peer, node.created, _done(line.line), until))
        self._announce(channel, peer.number, line.line, session)
        if session.identity is None and node.created > self._forgotten:  # any other may be a copy
            self._identifier.identify(session, line, node, peer)
        if said == ACTIVE:
            self._bus.presence.announce_present(channel, peer, until)
        else:
            self._bus.presence.announce_absent(channel, peer)

    def _keep(self, channel: str, author: str, word: PresenceStatus) -> None:
        words = self._received.pop(channel, None) or BoundedMap(MAX_AUTHORS, self._drop)
        self._received[channel] = words
        self._received_count += author not in words
        words[author] = word
        if self._received_count > MAX_STATUSES:
            quiet, others = next(iter(self._received.items()))
            others.drop_oldest()
            if not others:
                del self._received[quiet]

    def _drop(self, _author: str, word: PresenceStatus) -> None:
        self._received_count -= 1
        self._forgotten = max(self._forgotten, word.time)

    def _peer(self, author: str) -> Peer:
        node = self._nodes.node(author)
        name = node.name.text if isinstance(node, Identity) else None
        return self._bus.peers.identity(NAME, author, name or None)

    # What Arbor is told

    def changed(self, channel: str) -> None:
        """Somebody came to *channel*, or left."""
        self._changed.add(channel)

    def joined(self, channel: str, session: SproutConnection) -> None:
        """*session* listens to *channel* from now on, or to what is said of those in it."""
        if not self._wants_presence(session):
            return
        self._newcomers.setdefault(channel, {})[session] = set()
        self._changed.add(channel)

    def tick(self, now: int) -> None:
        """A second has passed: tell what changed, and again what was told long ago; newcomers all that holds."""
        self._forget(now)
        due, self._due = self._due, self._due | dict.fromkeys(self._changed)
        self._changed = set()
        for channel, told in self._announced.items():
            if next(iter(told.values())).time <= now - INTERVAL:
                self._due[channel] = None
        if not due:
            self._announce_due()
        room = MAX_ANNOUNCED
        for channel in list(self._newcomers):
            if room > 0:
                room -= self._announce_to_newcomers(channel, room)

    def _announce_due(self) -> None:
        """Tell what changed in a few communities; of others in the next turns of the loop."""
        room, now = LOOKED_AT, self._bus.clock()
        while self._due and room > 0:
            channel = next(iter(self._due))
            del self._due[channel]
            room -= _PEERS_PER_COMMUNITY + self._update(channel, now)
        if self._due:
            self._post(self._announce_due)

    def _forget(self, now: int) -> None:
        for channel, words in list(self._received.items()):
            for author, word in [entry for entry in words.items() if entry[1].until <= now]:
                words.pop(author)
                self._drop(author, word)
            if not words:
                del self._received[channel]

    def _announce_to_newcomers(self, channel: str, room: int) -> int:
        """Tell newcomers of everybody who is there, but for those of whom each has heard already; how many words.

        Who finds no *room* any more hears of it a second later.
        """
        has = self._bus.presence.contains
        heard = self._received.get(channel)
        words = [*self._announced.get(channel, {}).values(), *(word for _, word in (heard.items() if heard else ()))]
        words = [word for word in words if has(channel, word.peer.number) and word.line.data is not None][-MAX_PEERS:]
        sessions, told = self._newcomers[channel], 0
        while sessions and told < room:
            session = next(iter(sessions))
            known = sessions.pop(session)
            told += 1 + len(words)
            for word in words if channel in session.channels else ():
                if word.peer.number != session.who.number and word.peer.number not in known:
                    session.announce(word.line)
        if not sessions:
            del self._newcomers[channel]
        return told

    def _update(self, channel: str, now: int) -> int:
        """Tell of the peers of other protocols that came, left, or were told of long ago; the rest in a second.

        Return how many peers were looked at.
        """
        listeners = self._bus.listener_count(channel)
        if not self._listeners(channel) or not self._signer.is_offered(channel):
            self._announced.pop(channel, None)
            return listeners
        told, here = self._announced.setdefault(channel, {}), self._bus.presence.peers(channel)
        gone = [number for number in told if number not in here or here[number].protocol == NAME]
        again = [number for number, word in told.items() if number not in gone and word.time <= now - INTERVAL]
        others = (number for number, peer in here.items() if peer.protocol != NAME and number not in told)
        new = list(islice(others, max(0, MAX_PEERS - len(told) + len(gone))))
        for number in islice((*gone, *new, *again), PACE):
            former = told.pop(number, None)
            if number not in gone:
                told[number] = self._write(here[number], channel, ACTIVE, now)
            elif former is not None:
                self._write(former.peer, channel, INACTIVE, now)
        if len(gone) + len(new) + len(again) > PACE:
            self._changed.add(channel)
        if not told:
            del self._announced[channel]
        return listeners + len(here)

    def _write(self, peer: Peer, channel: str, said: bytes, now: int) -> PresenceStatus:
        """Have a node signed for *peer*, and tell it to whoever listens when that is done."""
        metadata = twig.encode({ACTIVITY: said, EXPIRATION: expiration(now + VALIDITY), INVISIBLE: b"true"})
        line = self._signer.sign_presence(peer, channel, now, metadata).line

        def made() -> None:
            if line.data is not None:
                self._announce(channel, peer.number, line.data)

        line.when_done(made)
        return PresenceStatus(peer, now, line)

    def _announce(self, channel: str, number: int, line: bytes, origin: SproutConnection | None = None) -> None:
        """Tell a word of the peer with *number*, or about it, to all who listen but *origin*, which knows it."""
        newcomers = self._newcomers.get(channel, {})
        for session in self._listeners(channel):
            if session is not origin:
                session.announce(line)
            if session in newcomers:
                newcomers[session].add(number)

    def _listeners(self, channel: str) -> list[SproutConnection]:
        sessions = cast("list[SproutConnection]", self._bus.listeners(channel, NAME))
        return sessions if self._to_all else [session for session in sessions if session.announces_presence]

    def _wants_presence(self, session: SproutConnection) -> bool:
        return self._to_all or session.announces_presence


def _done(line: bytes) -> PendingForm:
    pending = PendingForm()
    pending.fill(line)
    return pending
