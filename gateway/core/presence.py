"""Who is in a channel, and who hears of it.

A peer is in a channel while one of its connections listens there. Where a protocol has a word for it, a peer may also
say that it is there, although it listens elsewhere (a *guest*, until a time it names), or that it is not, although a
connection of its still listens (*away*, until it says otherwise or comes anew). Nothing of this is ever logged. Where
many listen they are told of it a few at a time, but always before they hear anything from a newcomer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from .bounded import BoundedMap
from .member import Member
from .message import Peer

MAX_GUESTS = 1000  # of one channel; beyond them the one that was heard of longest ago leaves
MAX_ALL_GUESTS = 10_000  # of all channels together; likewise
SLICE = 256  # sessions that are told of somebody in one turn of the loop, which may be a write for each
MAX_NEWS = 64  # comings and goings that many are still to be told of; beyond them the oldest is told at once


class PresenceClaim(NamedTuple):
    """What a peer says of itself: that it is here until a time (ms) or, without one, that it is away."""

    peer: Peer
    until: int | None


class Roster:
    """Who listens to one channel: the peers by their numbers, first come first, and each one's connections there.

    A peer with connections of several protocols is shown as what speaks the one that came last, of those that are left.
    """

    __slots__ = ("connections", "peers")

    def __init__(self) -> None:
        self.peers: dict[int, Peer] = {}
        self.connections: dict[int, dict[str | None, int]] = {}  # by what each of them speaks (`Peer.connection_protocol`)

    def add(self, peer: Peer) -> None:
        """Another connection of *peer* listens."""
        self.peers[peer.number] = peer
        connections = self.connections.setdefault(peer.number, {})
        connections[peer.connection_protocol] = connections.pop(peer.connection_protocol, 0) + 1

    def remove(self, peer: Peer) -> None:
        """A connection of *peer* listens no more."""
        connections = self.connections[peer.number]
        connections[peer.connection_protocol] -= 1
        if connections[peer.connection_protocol]:
            return
        del connections[peer.connection_protocol]
        if connections:
            self.peers[peer.number] = replace(self.peers[peer.number], connection_protocol=next(reversed(connections)))
        else:
            del self.peers[peer.number], self.connections[peer.number]


class _Notice:
    """That *peer* came to *channel*, or left it, and who is still to be told: those who listened then, and still do."""

    __slots__ = ("_came", "_gone", "_rest", "channel", "peer")

    def __init__(self, channel: str, peer: Peer, members: Iterator[Member], *, came: bool) -> None:
        self.channel = channel
        self.peer = peer
        self._rest = members
        self._came = came
        self._gone: set[Member] = set()

    def leaves(self, session: Member) -> None:
        """*session* listens no more; if it comes again it knows who is there."""
        self._gone.add(session)

    def tell(self, most: int) -> bool:
        """Tell *most* sessions; False once nobody is left."""
        told = 0
        for member in islice(self._rest, most):
            told += 1
            if member.who.number != self.peer.number and member not in self._gone:
                (member.peer_joined if self._came else member.peer_left)(self.channel, self.peer)
        return told == most


class Presence:
    """Keeps what peers say of themselves; *members* are the sessions that listen, by channel.

    Whether somebody is in a channel is told without a look at the others there. `post` runs a call in a later turn of
    the loop; without it everybody is told at once.
    """

    def __init__(self, members: Mapping[str, Mapping[Member, None]]) -> None:
        self.post: Callable[[Callable[[], None]], None] | None = None
        self._members = members
        self._news: deque[_Notice] = deque()  # the oldest first
        self._rooms: dict[str, Roster] = {}
        self._words: dict[str, dict[int, PresenceClaim]] = {}  # of guests, and of those who listen and are away
        self._guests = BoundedMap[tuple[str, int], Peer](MAX_ALL_GUESTS, self._leave)  # by channel and number

    def peers(self, channel: str) -> dict[int, Peer]:
        """The peers in *channel* by their numbers, in the order in which they came; guests are last."""
        room = self._rooms.get(channel)
        here = {} if room is None else room.peers.copy()
        for number, word in self._words.get(channel, {}).items():
            if word.until is None:
                here.pop(number, None)
            else:
                here[number] = word.peer
        return here

    def contains(self, channel: str, number: int) -> bool:
        """Whether the peer with *number* is in *channel*."""
        word = self._words.get(channel, {}).get(number)
        return self._listens(channel, number) if word is None else word.until is not None

    def guest_numbers(self) -> set[int]:
        """The numbers of those who are somewhere by their own word."""
        return {number for _, number in self._guests}

    def guest_channels(self, number: int) -> list[str]:
        """The channels in which the peer with *number* is a guest."""
        return [channel for channel, words in self._words.items() if number in words and self.contains(channel, number)]

    # What the bus says of its sessions

    def add_listener(self, channel: str, peer: Peer) -> list[Peer]:
        """A connection of *peer* is about to listen to *channel*; who is there."""
        others = self.peers(channel)
        if peer.number not in others:
            self._greet(channel, peer)
        self._forget(channel, peer.number)
        self._rooms.setdefault(channel, Roster()).add(peer)
        return list(others.values())

    def remove_listener(self, channel: str, peer: Peer, but: Member | None = None) -> None:
        """A connection of *peer* listens to *channel* no more; all *but* one hear of it."""
        room = self._rooms[channel]
        room.remove(peer)
        if not room.peers:
            del self._rooms[channel]
        if not self._listens(channel, peer.number) and self._forget(channel, peer.number) is None:
            self._farewell(channel, peer, but)

    def rename(self, session: Member, before: Peer) -> None:
        """Who was known as *before*, where *session* listens, has another number or name now."""
        who = session.who
        for channel in session.channels:
            if who.number == before.number:
                self._rooms[channel].peers[who.number] = who
                continue
            self.remove_listener(channel, before, session)
            word = self._forget(channel, who.number)
            known = self._listens(channel, who.number) if word is None else word.until is not None
            self._rooms.setdefault(channel, Roster()).add(who)
            if not known:
                self._greet(channel, who, session)

    # What peers say of themselves

    def announce_present(self, channel: str, peer: Peer, until: int) -> None:
        """*peer* says that it is in *channel*: until *until* (ms), unless it says so again or listens anyway."""
        known = self.contains(channel, peer.number)
        self._forget(channel, peer.number)
        if not self._listens(channel, peer.number):
            self._say(channel, PresenceClaim(peer, until))
        if not known:
            self._greet(channel, peer)

    def announce_absent(self, channel: str, peer: Peer) -> None:
        """*peer* says that it is not in *channel*, or no more."""
        known = self.contains(channel, peer.number)
        self._forget(channel, peer.number)
        if self._listens(channel, peer.number):
            self._say(channel, PresenceClaim(peer, None))
        if known:
            self._farewell(channel, peer)

    def tick(self, now: int) -> None:
        """Guests who have not said anything for too long leave."""
        for channel, words in list(self._words.items()):
            for peer in [word.peer for word in words.values() if word.until is not None and word.until <= now]:
                self.announce_absent(channel, peer)

    def _say(self, channel: str, word: PresenceClaim) -> None:
        words = self._words.setdefault(channel, {})
        words[word.peer.number] = word
        guests = [each.peer for each in words.values() if each.until is not None] if len(words) > MAX_GUESTS else []
        if len(guests) > MAX_GUESTS:
            self.announce_absent(channel, guests[0])
        if word.until is not None:
            self._guests[channel, word.peer.number] = word.peer

    def _leave(self, place: tuple[str, int], peer: Peer) -> None:
        """There are too many guests."""
        self.announce_absent(place[0], peer)

    def _forget(self, channel: str, number: int) -> PresenceClaim | None:
        """What a peer said of itself counts no more; what it was."""
        words = self._words.get(channel, {})
        word = words.pop(number, None)
        self._guests.pop((channel, number))
        if not words:
            self._words.pop(channel, None)
        return word

    def _listens(self, channel: str, number: int) -> bool:
        room = self._rooms.get(channel)
        return room is not None and number in room.peers

    # Who hears of it

    def leaves(self, channel: str, session: Member) -> None:
        """*session* listens to *channel* no more, and is told nothing more of who came and left."""
        for news in self._news:
            if news.channel == channel:
                news.leaves(session)

    def tell_arrival(self, channel: str, number: int) -> None:
        """The peer with *number* says something in *channel*: before that everybody there hears that it came."""
        while any(news.channel == channel and news.peer.number == number for news in self._news):
            self._tell_oldest()

    def _greet(self, channel: str, peer: Peer, but: Member | None = None) -> None:
        self._tell(channel, peer, but, came=True)

    def _farewell(self, channel: str, peer: Peer, but: Member | None = None) -> None:
        self._tell(channel, peer, but, came=False)

    def _tell(self, channel: str, peer: Peer, but: Member | None, *, came: bool) -> None:
        members = self._members.get(channel, {})
        news = _Notice(channel, peer, iter(tuple(members)), came=came)
        if but is not None:
            news.leaves(but)
        if self.post is None or (len(members) <= SLICE and not self._news):
            news.tell(len(members) + 1)
            return
        if len(self._news) == MAX_NEWS:
            self._tell_oldest()
        if not self._news:
            self.post(self._go_on)
        self._news.append(news)

    def _go_on(self) -> None:
        """Tell a few, and go on in the next turn."""
        assert self.post is not None
        if self._news:
            self.post(self._go_on)  # first: whatever happens below
            if not self._news[0].tell(SLICE):
                self._news.popleft()

    def _tell_oldest(self) -> None:
        news = self._news.popleft()
        while news.tell(SLICE):
            pass
