"""In a cluster, one gateway holds each link: the others, which name it as well, wait until it is their turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio

from gateway.shells.links import Dialler

from .membership import Membership

LOOK_SECONDS: Final = 0.5  # between two looks at who is to hold a link


def name_links(membership: Membership, links: Sequence[Dialler]) -> None:
    """Let none of *links* be connected yet, and tell the other members which they are."""
    for link in links:
        link.permit(False)
    membership.signalling.holders.name(link.id for link in links)


async def hold_links(membership: Membership, links: Sequence[Dialler]) -> None:
    """Keep permitting those of *links* that this gateway is to hold, and no others."""
    while True:
        for link in links:
            link.permit(membership.signalling.holders.may_hold(link.id))
        await anyio.sleep(LOOK_SECONDS)
