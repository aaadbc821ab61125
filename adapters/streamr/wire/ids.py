"""What the ids of streams mean: channels, inboxes and key exchange."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from gateway.core.bounded_maps import CACHED_CHANNELS

NAME = "streamr"  # of the protocol, in records, channels and settings

# A partition of up to 16 digits; MAX_INTEGER has no more.
_NUMBERED = r"(.+)#([1-9][0-9]{0,15})"
_PARTITION = re.compile(_NUMBERED, re.DOTALL)
_LOOKS_NUMBERED = re.compile(_NUMBERED + r"(?:#0)*", re.DOTALL)
_INBOX = re.compile(r"(.+)/@(0|[1-9][0-9]{0,15}|0x[0-9A-Fa-f]{40})", re.DOTALL)
_KEY_EXCHANGE = "SYSTEM/keyexchange/"


class Inbox(NamedTuple):
    """Where direct messages for one peer of a stream arrive: a peer number, or a lower-case address."""

    stream_id: str
    peer: int | str


def channel_of(stream_id: str, partition: int) -> str:
    """The name of the channel that a stream partition is; `stream_of` is the exact inverse.

    Partition p of S is `S#p`. Partition 0 is S itself, or `S#0` where S ends as if it had a partition.
    """
    if partition > 0:
        return f"{stream_id}#{partition}"
    return f"{stream_id}#0" if "#" in stream_id and _LOOKS_NUMBERED.fullmatch(stream_id) else stream_id


@lru_cache(CACHED_CHANNELS)  # called for each message
def stream_of(channel: str) -> tuple[str, int]:
    """The stream id and the partition that a channel is; every name has exactly one of them."""
    if "#" not in channel:
        return channel, 0
    found = _PARTITION.fullmatch(channel)
    if found is not None:
        return found[1], int(found[2])
    # `a#0` is not another name of `a`: only after a number does `#0` distinguish two streams.
    plain = channel.removesuffix("#0")
    return (plain if _LOOKS_NUMBERED.fullmatch(plain) else channel), 0


@lru_cache(CACHED_CHANNELS)
def inbox_of(stream_id: str) -> Inbox | None:
    """The inbox that a stream id `S/@N` means; None if it is not an inbox."""
    if "/@" not in stream_id:  # the common case, ten times faster than the pattern
        return None
    found = _INBOX.fullmatch(stream_id)
    if found is None:
        return None
    peer = found[2]
    return Inbox(found[1], peer.lower() if peer.startswith("0x") else int(peer))


def inbox_id(stream_id: str, peer: int | str) -> str:
    """The stream id of a peer's inbox; *peer* is its number or its address."""
    return f"{stream_id}/@{peer}"


def key_exchange_id(address: str) -> str:
    """The id of the key-exchange stream of *address*."""
    return _KEY_EXCHANGE + address.lower()


def key_exchange_address(stream_id: str) -> str | None:
    """The lower-case address whose key-exchange stream this is, or None for any other stream."""
    return stream_id[len(_KEY_EXCHANGE) :].lower() if stream_id.startswith(_KEY_EXCHANGE) else None
