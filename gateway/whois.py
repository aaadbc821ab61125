"""What is known of one sender, whatever protocol it speaks, and whether it is here: `GET /v1/peers/{number}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import anyio

from . import views
from .callers import Caller
from .message import Peer
from .problems import PROTOCOL
from .session import Session

MAX_SEARCHED = 1024  # channels, by name, that are looked at for what somebody said
MAX_LISTED = 256  # channels in an answer
TURN = 64  # channels that are looked at in one turn of the loop


class _Found(NamedTuple):
    """A peer, and in which channels there is something that it said."""

    peer: Peer
    said: list[str]


async def report(caller: Caller, number: int) -> dict[str, Any] | None:
    """All that *caller* may know of the peer with *number*; None where nobody has, or had, it.

    Who has no identity and is not connected is known by what it said, as long as that is kept.
    """
    gateway = caller.gateway
    connections = list(_connections(caller, number))
    found = await _search(caller, number)
    peer = gateway.peers.numbered(number)
    if peer is None and connections:
        peer = connections[0].peer
    if peer is None and found is not None:
        peer = found.peer
    if peer is None:
        return None
    bound = connections[0].who if connections and connections[0].who.number != number else None
    who = bound or peer
    presence = gateway.bus.presence
    near = {*presence.where(who.number), *(channel for session in connections for channel in session.channels)}
    here = sorted(channel for channel in near if presence.has(channel, who.number) and caller.may_know(channel))
    return views.peer(peer) | {
        "connections": len(connections),
        "connectionNumbers": [session.peer.number for session in connections],
        "protocols": list({peer.protocol: None} | {session.protocol: None for session in connections}),
        "boundTo": None if bound is None else bound.number,
        "key": who.identity if who.protocol == PROTOCOL and who.name is not None else None,
        "addresses": {adapter.name: adapter.names(who) for adapter in gateway.adapters},
        "channels": here[:MAX_LISTED],
        "saidIn": [] if found is None else found.said,
    }


def _connections(caller: Caller, number: int) -> Iterator[Session]:
    for session in caller.gateway.bus.sessions():
        if number in (session.peer.number, session.who.number):
            yield session


async def _search(caller: Caller, number: int) -> _Found | None:
    """Where the peer said something that *caller* may read."""
    peer, said = None, []
    names = [name for name in caller.gateway.channels.settled() if caller.may("history", name)]
    for count, name in enumerate(names[:MAX_SEARCHED], 1):
        for message in caller.gateway.index.history(name, sender=number, newest_first=True, limit=1):
            peer = message.sender
            said.append(name)
        if not count % TURN:
            await anyio.sleep(0)
    return None if peer is None else _Found(peer, said[:MAX_LISTED])
