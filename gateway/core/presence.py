"""Presence: which peers are in a channel; sessions get notices when peers join and leave (`gateway.core.notices`).

A peer is in a channel while one of its connections listens there. Some protocols also let a peer claim that it is
present although it listens elsewhere (a *guest*, until a time it names), or that it is absent although one of its
connections listens (until it claims otherwise or subscribes again). In a cluster, other gateways tell who is present
there. Presence is never logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from .bounded_maps import BoundedMap
from .message import Peer
from .notices import Notices
from .subscriber import Subscriber

MAX_GUESTS = 1000  # of one channel; beyond it the guest with the oldest claim leaves
MAX_ALL_GUESTS = 10_000  # of all channels together
# How many notices count as one request; each takes 1.5 us. More do when a peer joins, since a crowd may come together.
LEAVE_NOTICES_PER_REQUEST = 8
JOIN_NOTICES_PER_REQUEST = 64


class PresenceClaim(NamedTuple):
    """What a peer claims: that it is present until a time (ms) or, if that is None, that it is absent."""

    peer: Peer
    until: int | None


class Roster:
    """The peers that listen to one channel, by number in the order of arrival, and the connections of each there.

    A peer with connections of several protocols is shown with the protocol of the remaining one that came last.
    """

    __slots__ = ("connections", "peers")

    def __init__(self) -> None:
        self.peers: dict[int, Peer] = {}
        self.connections: dict[int, dict[str | None, int]] = {}  # counts, by `Peer.connection_protocol`

    def add(self, peer: Peer) -> None:
        """Count another connection of *peer*."""
        self.peers[peer.number] = peer
        connections = self.connections.setdefault(peer.number, {})
        connections[peer.connection_protocol] = connections.pop(peer.connection_protocol, 0) + 1

    def remove(self, peer: Peer) -> None:
        """Count one connection of *peer* less."""
        connections = self.connections[peer.number]
        connections[peer.connection_protocol] -= 1
        if connections[peer.connection_protocol]:
            return
        del connections[peer.connection_protocol]
        if connections:
            last = next(reversed(connections))
            self.peers[peer.number] = self.peers[peer.number].connected_by(last or peer.protocol)
        else:
            del self.peers[peer.number], self.connections[peer.number]


class Presence:
    """Keeps peers' claims, and notifies sessions of joins and leaves.

    *hearing* are the listening sessions by channel, without those whose protocol cannot express presence.

    Finding out whether a peer is in a channel takes constant time. `on_change` is told of a channel, and the number of
    a peer whose presence at this gateway may have changed.
    """

    def __init__(self, hearing: Mapping[str, Mapping[Subscriber, None]]) -> None:
        self.notices = Notices()
        self.on_change: Callable[[str, int], None] | None = None
        self._hearing = hearing
        self._rosters: dict[str, Roster] = {}
        self._claims: dict[str, dict[int, PresenceClaim]] = {}  # of guests, and of absent peers that listen
        self._guests = BoundedMap[tuple[str, int], Peer](MAX_ALL_GUESTS, self._drop_guest)  # by channel and number
        self._elsewhere: dict[str, dict[int, Peer]] = {}  # present at other gateways, by channel and number

    def peers(self, channel: str) -> dict[int, Peer]:
        """The peers in *channel* by their numbers, in the order in which they came.

        Guests follow, and then those that are present at other gateways alone.
        """
        roster = self._rosters.get(channel)
        present = {} if roster is None else roster.peers.copy()
        for number, claim in self._claims.get(channel, {}).items():
            if claim.until is None:
                present.pop(number, None)
            else:
                present[number] = claim.peer
        for number, peer in self._elsewhere.get(channel, {}).items():
            present.setdefault(number, peer)
        return present

    def contains(self, channel: str, number: int) -> bool:
        """Whether the peer with *number* is in *channel*."""
        claim = self._claims.get(channel, {}).get(number)
        here = self._listens(channel, number) if claim is None else claim.until is not None
        return here or number in self._elsewhere.get(channel, ())

    def peer_at_this_gateway(self, channel: str, number: int) -> Peer | None:
        """The peer with *number*, if it is in *channel* at this gateway."""
        claim = self._claims.get(channel, {}).get(number)
        if claim is not None:
            return None if claim.until is None else claim.peer
        return self._rosters[channel].peers[number] if self._listens(channel, number) else None

    def numbers_without_connection(self) -> set[int]:
        """The numbers of all guests, and of all who are present at other gateways."""
        return {number for _, number in self._guests} | {n for peers in self._elsewhere.values() for n in peers}

    def channels_without_connection(self, number: int) -> list[str]:
        """The channels in which the peer with *number* is a guest, or present at another gateway."""
        claimed = [name for name, claims in self._claims.items() if number in claims and self.contains(name, number)]
        return claimed + [name for name, peers in self._elsewhere.items() if number in peers]

    # Called by the bus for its sessions

    def add_listener(self, channel: str, peer: Peer) -> list[Peer]:
        """Record that a connection of *peer* is about to listen to *channel*; return the peers that are there."""
        others = self.peers(channel)
        if peer.number not in others:
            self._tell(channel, peer, joined=True)
        self._drop_claim(channel, peer.number)
        self._rosters.setdefault(channel, Roster()).add(peer)
        self._changed(channel, peer.number)
        return list(others.values())

    def remove_listener(self, channel: str, peer: Peer, excluded: Subscriber | None = None) -> None:
        """Record that a connection of *peer* stopped listening to *channel*; all sessions but *excluded* are told."""
        roster = self._rosters[channel]
        roster.remove(peer)
        if not roster.peers:
            del self._rosters[channel]
        if not self._listens(channel, peer.number):
            absent = self._drop_claim(channel, peer.number) is not None
            if not absent and not self.contains(channel, peer.number):
                self._tell(channel, peer, excluded, joined=False)
        self._changed(channel, peer.number)

    def rename(self, session: Subscriber, before: Peer) -> None:
        """Record that *session*, which was shown as *before*, is shown with another number or name now."""
        who = session.who
        for channel in session.channels:
            if who.number == before.number:
                self._rosters[channel].peers[who.number] = who
                self._changed(channel, who.number)
                continue
            self.remove_listener(channel, before, session)
            known = self.contains(channel, who.number)
            self._drop_claim(channel, who.number)
            self._rosters.setdefault(channel, Roster()).add(who)
            self._changed(channel, who.number)
            if not known:
                self._tell(channel, who, session, joined=True)

    # Called for what peers claim

    def announce_present(self, channel: str, peer: Peer, until: int) -> None:
        """Take the claim of *peer* to be in *channel*: until *until* (ms), unless one of its connections listens."""
        known = self.contains(channel, peer.number)
        self._drop_claim(channel, peer.number)
        if not self._listens(channel, peer.number):
            self._add_claim(channel, PresenceClaim(peer, until))
        self._changed(channel, peer.number)
        if not known:
            self._tell(channel, peer, joined=True)

    def announce_absent(self, channel: str, peer: Peer) -> None:
        """Take the claim of *peer* not to be in *channel*."""
        known = self.contains(channel, peer.number)
        self._drop_claim(channel, peer.number)
        if self._listens(channel, peer.number):
            self._add_claim(channel, PresenceClaim(peer, None))
        self._changed(channel, peer.number)
        if known and not self.contains(channel, peer.number):
            self._tell(channel, peer, joined=False)

    # Called for signals of other gateways

    def appear(self, channel: str, peer: Peer) -> None:
        """Note that *peer* is in *channel* at another gateway, perhaps with another name than before."""
        known = self.contains(channel, peer.number)
        self._elsewhere.setdefault(channel, {})[peer.number] = peer
        if not known:
            self._tell(channel, peer, joined=True)

    def vanish(self, channel: str, number: int) -> None:
        """Note that the peer with *number*, which was in *channel* at other gateways, is there no more."""
        peers = self._elsewhere[channel]
        peer = peers.pop(number)
        if not peers:
            del self._elsewhere[channel]
        if not self.contains(channel, number):
            self._tell(channel, peer, joined=False)

    def _changed(self, channel: str, number: int) -> None:
        if self.on_change is not None:
            self.on_change(channel, number)

    def tick(self, now: int) -> None:
        """End the claims of guests whose time is before *now* (ms)."""
        for channel, claims in list(self._claims.items()):
            for peer in [claim.peer for claim in claims.values() if claim.until is not None and claim.until <= now]:
                self.announce_absent(channel, peer)

    def _add_claim(self, channel: str, claim: PresenceClaim) -> None:
        claims = self._claims.setdefault(channel, {})
        claims[claim.peer.number] = claim
        guests = [each.peer for each in claims.values() if each.until is not None] if len(claims) > MAX_GUESTS else []
        if len(guests) > MAX_GUESTS:
            self.announce_absent(channel, guests[0])
        if claim.until is not None:
            self._guests[channel, claim.peer.number] = claim.peer

    def _drop_guest(self, key: tuple[str, int], peer: Peer) -> None:
        """Let a guest leave because there are too many."""
        self.announce_absent(key[0], peer)

    def _drop_claim(self, channel: str, number: int) -> PresenceClaim | None:
        """Forget and return what a peer claimed."""
        claims = self._claims.get(channel, {})
        claim = claims.pop(number, None)
        self._guests.pop((channel, number))
        if not claims:
            self._claims.pop(channel, None)
        return claim

    def _listens(self, channel: str, number: int) -> bool:
        roster = self._rosters.get(channel)
        return roster is not None and number in roster.peers

    def _tell(self, channel: str, peer: Peer, excluded: Subscriber | None = None, *, joined: bool) -> None:
        """Tell the sessions in *channel* but *excluded* that *peer* joined or left."""
        members = self._hearing.get(channel)
        if members and excluded in members:
            members = {each: None for each in members if each is not excluded}
        if members:
            self.notices.tell(channel, peer, members, joined=joined)
