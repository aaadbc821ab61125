"""`GET /v1/peers/{number}`: what is known of one peer of any protocol, and where it is present."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import anyio

from gateway.core.message import REST, Peer
from gateway.core.subscriber import Subscriber

from . import views
from .callers import Caller

COST = 20  # requests that one request for a peer counts as
MAX_SEARCHED = 1024  # channels, by name, that are searched for the peer or its messages
MAX_LISTED = 256  # channels in a response
TURN = 64  # channels that are searched in one turn of the loop


class _SentChannels(NamedTuple):
    """A sender, the protocol of its newest message in the first channel, and all channels that have messages of it."""

    peer: Peer
    protocol: str
    said: list[str]


async def report(caller: Caller, number: int) -> dict[str, Any] | None:
    """Return what *caller* may know of the peer with *number*; None if it is unknown.

    A peer without an identity that is not connected is known as long as one of its messages is kept.
    """
    gateway = caller.gateway
    connections = gateway.bus.sessions_of(number)
    found = await _find_sent(caller, number)
    peer = gateway.peers.with_number(number)
    if peer is None and connections:
        peer = connections[0].peer
    if peer is None and found is not None:
        peer = found.peer
    if peer is None:
        return None
    bound = connections[0].who if connections and connections[0].who.number != number else None
    who = bound or peer
    here = await _channels_of(caller, who.number, connections)
    protocols = list(dict.fromkeys(session.protocol for session in connections))
    if not protocols:
        protocols = [peer.protocol if found is None else found.protocol]
    return views.peer(peer.connected_by(protocols[0])) | {
        "connections": len(connections),
        "connectionNumbers": [session.peer.number for session in connections],
        "protocols": protocols,
        "boundTo": None if bound is None else bound.number,
        "key": who.name if who.protocol == REST else None,
        "addresses": {adapter.name: adapter.names(who) for adapter in gateway.adapters},
        "channels": here[:MAX_LISTED],
        "saidIn": [] if found is None else found.said,
    }


async def _channels_of(caller: Caller, number: int, connections: list[Subscriber]) -> list[str]:
    """Return by name the channels in which the peer with *number* is present, of those that *caller* may know."""
    presence = caller.gateway.bus.presence
    listening = (channel for session in connections for channel in list(session.channels))
    near = list(dict.fromkeys([*presence.channels_without_connection(number), *islice(listening, MAX_SEARCHED)]))
    here = []
    for count, channel in enumerate(near, 1):
        if presence.contains(channel, number) and caller.may_know(channel):
            here.append(channel)
        if not count % TURN:
            await anyio.sleep(0)
    return sorted(here)


async def _find_sent(caller: Caller, number: int) -> _SentChannels | None:
    """Find the channels with messages of the peer that *caller* may read."""
    index, said, name = caller.gateway.index, list[str](), ""
    for _ in range(MAX_SEARCHED // TURN):
        names = caller.gateway.channels.listed(name, TURN)
        said += [name for name in names if caller.may("history", name) and index.has_message_by(number, name)]
        if len(names) < TURN:
            break
        name = names[-1]
        await anyio.sleep(0)
    found = (index.history(name, sender=number, newest_first=True, limit=1) for name in said)
    last = next((messages[0] for messages in found if messages), None)
    return None if last is None else _SentChannels(last.sender, last.protocol, said[:MAX_LISTED])
