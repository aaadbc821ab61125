"""Presence in Arbor: invisible replies to a community that say that their author is active, or inactive.

Those of Arbor's authors are forwarded as they came, and announced to the other protocols. For peers of other protocols
the gateway signs them: when they join, when they leave and every `INTERVAL`, but only while a client of Arbor listens
for them. Changes are collected for a second, so a peer that joins and leaves within it costs no signature. None of
these nodes is logged, but a new subscriber gets the current ones; and one that somebody replied to is logged for the
sake of the reply (`special_replies`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, Literal, NamedTuple, cast

from adapters.sprout.forest import twig
from adapters.sprout.forest.forest import Identity, Reply
from adapters.sprout.forest.node_rules import ACTIVITY, EXPIRATION, INVISIBLE, expiration, expires_at
from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.identification import CLOCK_SKEW, ConnectionIdentifier
from adapters.sprout.hub.nodes import NodeDirectory
from adapters.sprout.mint.mint import Mint
from adapters.sprout.mint.reply_signer import ReplySigner
from adapters.sprout.store.tables import NAME
from adapters.sprout.wire.codec import NodeLine
from gateway.core.bounded_maps import BoundedMap
from gateway.core.bus import Bus
from gateway.core.message import LATE_AFTER, Peer, PendingForm

PresenceMode = Literal["tell", "silent"]

ACTIVE: Final = b"0"
INACTIVE: Final = b"1"
INTERVAL: Final = 5 * 60_000  # ms after which a peer is announced again
VALIDITY: Final = 2 * INTERVAL  # ms for which an announcement without expiration is valid
MAX_VALIDITY: Final = 60 * 60_000  # ms for which any announcement is valid at most
MAX_PEERS: Final = 200  # of other protocols that are announced in one community
MAX_AUTHORS: Final = 1000  # of one community whose last announcement is kept
MAX_STATUSES: Final = 10_000  # announcements of all communities together, at most 40 MiB
MAX_LINE: Final = 4096  # characters of a node that announces presence
MAX_ANNOUNCED: Final = 2000  # announcements to newcomers in a second, some 4 ms
PACE: Final = 50  # nodes of one community that are signed in a second
LOOKED_AT: Final = 8_192  # peers that are looked at in one turn of the loop, some 2 ms
_PEERS_PER_COMMUNITY: Final = 128  # peers that take as long as a community without any


class PresenceStatus(NamedTuple):
    """The last announcement of a peer, by itself or the gateway: its time (ms), line and end of validity (ms)."""

    peer: Peer
    time: int
    line: PendingForm
    until: int = 0


class SproutPresence:
    """Forwards, keeps and signs announcements of presence.

    In the mode `tell` all listeners get the announcements, in the mode `silent` only those that announce presence
    themselves: other clients display each announcement as an empty message. A node that is older than the connection
    does not count as the client's own, since all clients announce the nodes that they hold.
    """

    def __init__(
        self,
        bus: Bus,
        nodes: NodeDirectory,
        mint: Mint,
        signer: ReplySigner,
        identifier: ConnectionIdentifier,
        post: Callable[[Callable[[], None]], None],
        mode: PresenceMode,
        elsewhere: Callable[[bytes], None],
    ) -> None:
        self._to_all = mode == "tell"
        self._bus = bus
        self._nodes = nodes
        self._mint = mint
        self._signer = signer
        self._identifier = identifier
        self._post = post
        self._elsewhere = elsewhere
        # Of Arbor's authors, by channel and author; the oldest first.
        self._received: dict[str, BoundedMap[str, PresenceStatus]] = {}
        self._received_count = 0  # in all channels
        self._forgotten = 0  # the latest time of a dropped announcement
        # By the gateway, by channel and number; the oldest first.
        self._announced: dict[str, dict[int, PresenceStatus]] = {}
        self._changed: set[str] = set()
        self._due: dict[str, None] = {}  # of those, the channels to announce in this second
        # By channel, with the peers that were announced to each since it joined.
        self._newcomers: dict[str, dict[SproutConnection, set[int]]] = {}

    # Announcements by Arbor's authors

    def receive(
        self, line: NodeLine, node: Reply, announcement: bytes, channel: str, session: SproutConnection
    ) -> None:
        """Take the *announcement* of a *node*, unless it is old, too long, or made by the gateway."""
        if not line.answered and not session.announces_presence and node.created >= session.since - CLOCK_SKEW:
            session.announces_presence = True
            for each in session.channels:
                self.joined(each, session)
        if len(line.line) > MAX_LINE or not self._is_news(node, announcement, channel):
            return
        peer = self._peer(node.author)
        until = self._forward(line.line, node, channel, peer, session)
        self._elsewhere(line.line)
        if session.identity is None and node.created > self._forgotten:  # an older one may be a copy
            self._identifier.identify(session, line, node, peer)
        if announcement == ACTIVE:
            self._bus.presence.announce_present(channel, peer, until)
        else:
            self._bus.presence.announce_absent(channel, peer)

    def forward(self, line: bytes, node: Reply, announcement: bytes, channel: str, peer: Peer) -> None:
        """Forward the *announcement* that *peer* made by a *node* at another member, which informs other protocols."""
        if self._is_news(node, announcement, channel):
            self._forward(line, node, channel, peer)

    def _is_news(self, node: Reply, announcement: bytes, channel: str) -> bool:
        """Whether a *node* of an author announces something, and nothing older than what is known."""
        now = self._bus.clock()
        there = self._received.get(channel)
        last = None if there is None else there.get(node.author)
        return (
            announcement in (ACTIVE, INACTIVE)
            and now - LATE_AFTER <= node.created <= now + LATE_AFTER
            and (last is None or node.created > last.time)
            and self._mint.minted_for(node.author) is None
        )

    def _forward(
        self, line: bytes, node: Reply, channel: str, peer: Peer, origin: SproutConnection | None = None
    ) -> int:
        """Keep and announce a *line*; until when it is valid (ms)."""
        now = self._bus.clock()
        until = min(expires_at(node) or now + VALIDITY, now + MAX_VALIDITY)
        self._keep(channel, node.author, PresenceStatus(peer, node.created, _done(line), until))
        self._announce(channel, peer.number, line, origin)
        return until

    def _keep(self, channel: str, author: str, status: PresenceStatus) -> None:
        statuses = self._received.pop(channel, None) or BoundedMap(MAX_AUTHORS, self._drop)
        self._received[channel] = statuses
        self._received_count += author not in statuses
        statuses[author] = status
        if self._received_count > MAX_STATUSES:
            quiet, others = next(iter(self._received.items()))
            others.drop_oldest()
            if not others:
                del self._received[quiet]

    def _drop(self, _author: str, status: PresenceStatus) -> None:
        self._received_count -= 1
        self._forgotten = max(self._forgotten, status.time)

    def _peer(self, author: str) -> Peer:
        node = self._nodes.node(author)
        name = node.name.text if isinstance(node, Identity) else None
        return self._bus.peers.identity(NAME, author, name or None)

    # Announcements to Arbor

    def changed(self, channel: str) -> None:
        """Note that a peer joined or left *channel*."""
        self._changed.add(channel)

    def joined(self, channel: str, session: SproutConnection) -> None:
        """Announce the peers in *channel* to *session* from now on."""
        if not self._wants_presence(session):
            return
        self._newcomers.setdefault(channel, {})[session] = set()
        self._changed.add(channel)

    def tick(self, now: int) -> None:
        """Announce changes, repeat old announcements, and send valid ones to newcomers; called once a second."""
        self._forget(now)
        due, self._due = self._due, self._due | dict.fromkeys(self._changed)
        self._changed = set()
        for channel, statuses in self._announced.items():
            if next(iter(statuses.values())).time <= now - INTERVAL:
                self._due[channel] = None
        if not due:
            self._announce_due()
        room = MAX_ANNOUNCED
        for channel in list(self._newcomers):
            if room > 0:
                room -= self._announce_to_newcomers(channel, room)

    def _announce_due(self) -> None:
        """Announce changes in a few communities, and in the others in the next turns of the loop."""
        room, now = LOOKED_AT, self._bus.clock()
        while self._due and room > 0:
            channel = next(iter(self._due))
            del self._due[channel]
            room -= _PEERS_PER_COMMUNITY + self._update(channel, now)
        if self._due:
            self._post(self._announce_due)

    def _forget(self, now: int) -> None:
        for channel, statuses in list(self._received.items()):
            for author, status in [entry for entry in statuses.items() if entry[1].until <= now]:
                statuses.pop(author)
                self._drop(author, status)
            if not statuses:
                del self._received[channel]

    def _announce_to_newcomers(self, channel: str, room: int) -> int:
        """Announce all peers in *channel* to newcomers, except those that each knows; return the number of lines.

        Newcomers beyond *room* get them a second later.
        """
        has = self._bus.presence.contains
        received = self._received.get(channel)
        from_arbor = [status for _, status in received.items()] if received else []
        statuses = [*self._announced.get(channel, {}).values(), *from_arbor]
        statuses = [each for each in statuses if has(channel, each.peer.number) and each.line.data is not None]
        statuses = statuses[-MAX_PEERS:]
        sessions, announced_count = self._newcomers[channel], 0
        while sessions and announced_count < room:
            session = next(iter(sessions))
            known = sessions.pop(session)
            announced_count += 1 + len(statuses)
            for status in statuses if channel in session.channels else ():
                if status.peer.number != session.who.number and status.peer.number not in known:
                    session.announce(status.line)
        if not sessions:
            del self._newcomers[channel]
        return announced_count

    def _update(self, channel: str, now: int) -> int:
        """Announce peers of other protocols that joined, left, or were announced long ago; the rest in a second.

        Return how many peers were looked at.
        """
        listeners = self._bus.listener_count(channel)
        if not self._listeners(channel) or not self._signer.is_offered(channel, self._bus.clock()):
            self._announced.pop(channel, None)
            return listeners
        statuses, here = self._announced.setdefault(channel, {}), self._bus.presence.peers(channel)
        gone = [number for number in statuses if number not in here or here[number].protocol == NAME]
        again = [number for number, status in statuses.items() if number not in gone and status.time <= now - INTERVAL]
        others = (number for number, peer in here.items() if peer.protocol != NAME and number not in statuses)
        new = list(islice(others, max(0, MAX_PEERS - len(statuses) + len(gone))))
        for number in islice((*gone, *new, *again), PACE):
            former = statuses.pop(number, None)
            if number not in gone:
                statuses[number] = self._write(here[number], channel, ACTIVE, now)
            elif former is not None:
                self._write(former.peer, channel, INACTIVE, now)
        if len(gone) + len(new) + len(again) > PACE:
            self._changed.add(channel)
        if not statuses:
            del self._announced[channel]
        return listeners + len(here)

    def _write(self, peer: Peer, channel: str, announcement: bytes, now: int) -> PresenceStatus:
        """Sign a node for *peer*, and announce it to the listeners when that is done."""
        metadata = twig.encode({ACTIVITY: announcement, EXPIRATION: expiration(now + VALIDITY), INVISIBLE: b"true"})
        line = self._signer.sign_presence(peer, channel, now, metadata).line

        def made() -> None:
            if line.data is not None:
                self._announce(channel, peer.number, line.data)

        line.when_done(made)
        return PresenceStatus(peer, now, line)

    def _announce(self, channel: str, number: int, line: bytes, origin: SproutConnection | None = None) -> None:
        """Announce *line*, about the peer with *number*, to all listeners except *origin*, which sent it."""
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
