"""The state of a connection to a stream, and of the stream on the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nats.js.api import StreamInfo  # nats-py is an extra


class Replica(NamedTuple):
    """A server that keeps the stream; it may lead the others, be as far as the leader, or lag by so many operations."""

    name: str
    leads: bool
    current: bool
    lag: int


class StoredStream(NamedTuple):
    """What the servers keep of a stream: positions *first* to *last*, in *bytes*, on these *replicas*."""

    first: int
    last: int
    bytes: int
    replicas: tuple[Replica, ...]


class JetStreamStatus(NamedTuple):
    """Whether there is a connection, and to which *server*; *reconnects* counts how often it was made again.

    *position* is the last that was read, *unsent* are bytes, *error* is the last fault. *stored* is what a server
    that knew a leader answered *silence* seconds ago, and None if none has yet; they are asked every two seconds.
    """

    connected: bool
    position: int
    unsent: int
    error: str
    server: str = ""
    reconnects: int = 0
    stored: StoredStream | None = None
    silence: float = 0.0


def has_leader(info: StreamInfo) -> bool:
    """Whether the servers that keep the stream have a leader, as far as the one that answered by *info* knows.

    One that led them when it was cut off from the others answers too, about its own copy, once it leads no more.
    """
    return info.cluster is None or bool(info.cluster.leader)


def stored_stream(info: StreamInfo) -> StoredStream:
    """What *info*, the answer of a server, tells; a server that is alone does not tell who leads."""
    cluster, state = info.cluster, info.state
    found: list[Replica] = []
    if cluster is not None:
        if cluster.leader:
            found.append(Replica(cluster.leader, True, True, 0))
        for peer in cluster.replicas or ():
            current = bool(peer.current) and not peer.offline
            found.append(Replica(peer.name or "", False, current, peer.lag or 0))
    return StoredStream(state.first_seq, state.last_seq, state.bytes, tuple(sorted(found)))
