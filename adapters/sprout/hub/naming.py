"""The channel of an Arbor community, and the name of a new one (docs/protocols.md, "Sprout")."""

from __future__ import annotations

from typing import Final

from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import NAME
from gateway.core.channels import GATEWAY_PREFIX, Channels, valid_name
from gateway.core.errors import UnknownChannel
from gateway.storage.record import Fact

UNNAMED: Final = "community"  # replaces the name of a community that is not valid for a channel
DIGEST: Final = 6  # characters of its id that distinguish a community from others of its name


def channel_name(id: str, name: str, channels: Channels) -> str:
    """The name of the channel for the community *id*: its own *name* if that is valid and free, or a similar one."""
    usable = valid_name(name) and not name.startswith(GATEWAY_PREFIX)
    if usable and not channels.exists(name) and channels.address(NAME, name) is None:
        return name
    digest = id.partition("__")[2]  # the first: a digest may have some itself
    for size in range(DIGEST, len(digest) + 1):
        longer = f"{name if usable else UNNAMED}~{digest[:size]}"
        if not valid_name(longer):
            longer = f"{UNNAMED}~{digest[:size]}"
        if channels.address(NAME, longer) is None:
            return longer
    raise UnknownChannel(id)  # all of them are taken


def find_channel(community: str, channels: Channels, store: Store) -> str | None:
    """The channel of the community with this id, or the one that it is an alias of; None if there is neither."""
    try:
        return channels.channel(NAME, community)
    except UnknownChannel:
        seq = store.seq(community)
        entry = None if seq is None else store.entry(seq)
        return entry.fields.get("alias") if isinstance(entry, Fact) else None
