"""Presence over all gateways of a cluster: each tells the others which peers are connected to it.

Changes are numbered. A gateway that lacks one, or has just joined, asks for all present peers. The peers of a gateway
that is gone leave. A peer that is present at two gateways leaves when it has left both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from gateway.core.message import Peer
from gateway.core.presence import Presence
from gateway.storage.record_schema import is_channel_name

from .signals import MAX_ROWS, PeerRow, PresenceChanges, PresenceSnapshot, Signal, SnapshotRequest

GATHER: Final = 0.05  # seconds for which changes are collected
MAX_PRESENT: Final = 1_000_000  # peers in channels at all other gateways; no more are added
SLICE: Final = 256  # peers of a gateway that is gone which leave in one turn of the loop

Row = TypeVar("Row")
Key = tuple[str, int]  # a channel, and the number of a peer there
Tell = Callable[[Signal, str], None]


class _RemotePeers:
    """The *peers* at another gateway, up to the change *number*, which is None if a change is missing."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.peers: dict[Key, Peer] = {}
        self.parts: list[PeerRow] = []
        self.part = 0  # of a snapshot that has begun, that comes next


class SharedPresence:
    """Tells the changes of *presence* at the member *me* by *tell*; *later* runs a call after so many seconds."""

    def __init__(
        self, me: str, presence: Presence, tell: Tell, later: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self.number = 0  # of the last change that was sent
        self.ignored = 0  # peers that could not be taken
        self._me = me
        self._presence = presence
        self._tell = tell
        self._later = later
        self._told: dict[Key, Peer] = {}
        self._changed: dict[Key, None] = {}
        self._members: dict[str, _RemotePeers] = {}
        self._holders: dict[Key, dict[str, Peer]] = {}
        self._orphans = deque[tuple[str, Key]]()  # of gateways that are gone
        presence.on_change = self._note

    def holders(self, channel: str, number: int) -> list[str]:
        """The other members at which the peer with *number* is in *channel*."""
        return list(self._holders.get((channel, number), ()))

    # Telling

    def _note(self, channel: str, number: int) -> None:
        if not self._changed:
            self._later(GATHER, self._tell_changes)
        self._changed[channel, number] = None

    def _tell_changes(self) -> None:
        left, joined = list[Key](), list[PeerRow]()
        changed, self._changed = self._changed, {}
        for key in changed:
            peer, announced = self._presence.peer_at_this_gateway(*key), self._told.get(key)
            if peer is None and announced is not None:
                del self._told[key]
                left.append(key)
            elif peer is not None and peer != announced:
                self._told[key] = peer
                joined.append(_row(key[0], peer))
        for keys in _parts(left):
            self.number += 1
            self._tell(PresenceChanges(self._me, self.number, left=keys), "")
        for rows in _parts(joined):
            self.number += 1
            self._tell(PresenceChanges(self._me, self.number, joined=rows), "")

    def answer(self, request: SnapshotRequest) -> None:
        """Tell all peers that are present here to the member that asks."""
        rows = [_row(channel, peer) for (channel, _), peer in self._told.items()]
        parts = _parts(rows) or [[]]
        for part, some in enumerate(parts):
            self._tell(PresenceSnapshot(self._me, self.number, part, part + 1 < len(parts), some), request.member)

    # Taking

    def take_heartbeat(self, member: str, number: int) -> None:
        """Note that *member* has sent *number* changes; ask for those that are missing."""
        if member not in self._members:
            self._members[member] = _RemotePeers()
            if number == 0:
                self._members[member].number = 0
        if self._members[member].number != number:
            self._tell(SnapshotRequest(self._me), member)

    def gone(self, member: str) -> None:
        """Let the peers of *member* leave, a few in each turn of the loop."""
        former = self._members.pop(member, None)
        if former is None:
            return
        if not self._orphans:
            self._later(0, self._drop_orphans)
        self._orphans += [(member, key) for key in former.peers]

    def take_changes(self, changes: PresenceChanges) -> None:
        """Apply *changes* of another member if they are the next; else ask it for a snapshot."""
        member = self._members.get(changes.member)
        if member is None or member.number is None or changes.number <= member.number:
            return
        if changes.number != member.number + 1:
            member.number = None
            self._tell(SnapshotRequest(self._me), changes.member)
            return
        member.number = changes.number
        for channel, number in changes.left:
            self._leave(changes.member, member, (channel, number))
        for row in changes.joined:
            self._join(changes.member, member, row)

    def take_snapshot(self, snapshot: PresenceSnapshot) -> None:
        """Take a part of the peers at another member; after the last part, peers that were in no part have left."""
        member = self._members.get(snapshot.member)
        if member is None or snapshot.number == member.number:
            return
        if snapshot.part == 0:
            member.part, member.parts = 0, []
        if snapshot.part != member.part or len(member.parts) > MAX_PRESENT:
            member.part, member.parts = -1, []
            return
        member.part += 1
        member.parts += snapshot.rows
        if snapshot.more:
            return
        rows, member.parts, member.number = member.parts, [], snapshot.number
        for key in member.peers.keys() - {(row.channel, row.number) for row in rows}:
            self._leave(snapshot.member, member, key)
        for row in rows:
            self._join(snapshot.member, member, row)

    def _join(self, name: str, member: _RemotePeers, row: PeerRow) -> None:
        key, peer = (row.channel, row.number), _peer(row)
        if member.peers.get(key) == peer:
            return
        full = key not in self._holders and len(self._holders) >= MAX_PRESENT
        if full or not is_channel_name(row.channel):
            self.ignored += 1
            return
        member.peers[key] = peer
        self._holders.setdefault(key, {})[name] = peer
        self._presence.appear(row.channel, peer)

    def _leave(self, name: str, member: _RemotePeers, key: Key) -> None:
        if member.peers.pop(key, None) is not None:
            self._release(name, key)

    def _release(self, name: str, key: Key) -> None:
        holders = self._holders[key]
        del holders[name]
        if holders:
            self._presence.appear(key[0], next(iter(holders.values())))
        else:
            del self._holders[key]
            self._presence.vanish(*key)

    def _drop_orphans(self) -> None:
        for name, key in self._some_orphans():
            again = self._members.get(name)
            if (again is None or key not in again.peers) and name in self._holders.get(key, ()):
                self._release(name, key)
        if self._orphans:
            self._later(0, self._drop_orphans)

    def _some_orphans(self) -> Iterator[tuple[str, Key]]:
        for _ in range(min(SLICE, len(self._orphans))):
            yield self._orphans.popleft()


def _parts(rows: list[Row]) -> list[list[Row]]:
    return [rows[at : at + MAX_ROWS] for at in range(0, len(rows), MAX_ROWS)]


def _row(channel: str, peer: Peer) -> PeerRow:
    return PeerRow(channel, peer.number, peer.protocol, peer.identity, peer.name, peer.connection_protocol)


def _peer(row: PeerRow) -> Peer:
    return Peer(row.number, row.protocol, row.identity, row.name, row.connection_protocol)
