"""What REST shows of peers, messages and channels, as JSON.

The content of a message is never decoded and encoded again: its text is inserted as it is, so that no digit of it
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Response

from gateway.core.contracts import Receipt
from gateway.core.jsontext import dumps
from gateway.core.message import Message, Peer
from gateway.core.peers import PeerRegistry
from gateway.runtime import Gateway

MEDIA_TYPE = "application/json"


def peer(peer: Peer) -> dict[str, Any]:
    """Return a peer as `GET .../peers` and the events `joined` and `left` show it."""
    protocol = peer.connection_protocol or peer.protocol
    return {"number": peer.number, "protocol": protocol, "identity": peer.identity, "name": peer.name}


def sender(peers: PeerRegistry, message: Message) -> dict[str, Any]:
    """Return the sender of a message; its current name, if it is a durable peer, since the log keeps no names."""
    peer = message.sender
    known = peers.with_number(peer.number) if peer.identity is not None and peer.name is None else peer
    name = None if known is None else known.name
    return {"peer": peer.number, "protocol": message.protocol, "identity": peer.identity, "name": name}


def message(peers: PeerRegistry, message: Message) -> bytes:
    """Return a message as JSON; a direct message has no sequence."""
    sequence = b'"sequence":%d,' % message.seq if message.seq else b""
    return (
        b'{"id":%b,%b"channel":%b,"timestamp":%d,"sender":%b,"content":%b,"inReplyTo":%b,"native":%b,"undelivered":%b}'
        % (
            dumps(message.id),
            sequence,
            dumps(message.channel),
            message.timestamp,
            dumps(sender(peers, message)),
            message.content,
            dumps(message.parent),
            dumps(message.native or {}),
            dumps(message.undelivered),
        )
    )


def accepted(channel: bytes, receipt: Receipt | Message) -> bytes:
    """Return the response body to a publish, once it is on disk; *channel* is the name as JSON."""
    return accepted_lines(channel, (receipt,))[:-1]


def accepted_lines(channel: bytes, run: Sequence[Receipt | Message]) -> bytes:
    """Return what `accepted` does for each of *run*, a line for each."""
    return b"".join(
        [
            b'{"id":"%b","channel":%b,"sequence":%d,"timestamp":%d,"undelivered":%b}\n'
            % (
                taken.id.encode(),
                channel,
                taken.seq,
                taken.time,
                dumps(taken.undelivered) if taken.undelivered else b"[]",
            )
            for taken in run
        ]
    )


def channels(gateway: Gateway, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return channels: their address in each protocol, how many listen, and the sequences of their last messages."""
    last = gateway.index.last_seqs(names)
    bus = gateway.bus
    return [
        {"name": name} | bus.describe(name) | {"members": bus.listener_count(name), "sequence": last[name]}
        for name in names
    ]


def channel(gateway: Gateway, name: str) -> dict[str, Any]:
    """Return one channel."""
    return channels(gateway, (name,))[0]


def json_response(value: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(dumps(value), status, media_type=MEDIA_TYPE)
