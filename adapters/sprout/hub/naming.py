"""Which channel a community of Arbor is, and what one is called that it becomes (docs/protocols.md, "Sprout")."""

from __future__ import annotations

from typing import Final

from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import NAME
from gateway.core.channels import GATEWAY_PREFIX, Channels, valid_name
from gateway.core.errors import UnknownChannel
from gateway.storage.record import Fact

UNNAMED: Final = "community"  # the beginning of the name of a channel whose community's name cannot be one
DIGEST: Final = 6  # characters of a community's id that tell it from others of its name


def channel_name(id: str, name: str, channels: Channels) -> str:
    """The name for the community *id*: its own *name*, or one that no community among *channels* has."""
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
    raise UnknownChannel(id)  # somebody has taken all of them


def find_channel(community: str, channels: Channels, store: Store) -> str | None:
    """The channel that the community with this id is, or is the same as; None where it is neither."""
    try:
        return channels.channel(NAME, community)
    except UnknownChannel:
        seq = store.seq(community)
        entry = None if seq is None else store.entry(seq)
        return entry.fields.get("alias") if isinstance(entry, Fact) else None
