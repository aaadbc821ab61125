"""Other gateways that this one trusts: it accepts their claims about channels and copies.

The setting `sprout.gateways` lists their identities (`trellis identity show`). A gateway signs with one key for itself
and for all peers of other protocols, so that key identifies the nodes that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gateway.core.channels import GATEWAY_PREFIX, valid_name

from . import twig
from .forest import Community, Identity, Node

CHANNEL: Final = "channel/1"


class TrustedGateways:
    """The trusted gateways, by the node *ids* of their identities; *find* looks up a node that is held."""

    def __init__(self, ids: Iterable[str], find: Callable[[str], Node | None]) -> None:
        self._ids = frozenset(ids)
        self._find = find

    def channel(self, node: Community) -> str | None:
        """The channel that *node* claims to be; None if its author is not trusted, or if it claims none."""
        if node.author not in self._ids:
            return None
        name = twig.decode(node.metadata.blob).get(CHANNEL, b"").decode(errors="replace")
        return name if valid_name(name) and not name.startswith(GATEWAY_PREFIX) else None

    def speaks_for(self, author: str) -> bool:
        """Whether *author* is a trusted gateway, or an identity whose nodes a trusted gateway signs."""
        if author in self._ids:
            return True
        node = self._find(author) if self._ids else None
        return isinstance(node, Identity) and any(
            isinstance(other := self._find(id), Identity) and other.public_key == node.public_key for id in self._ids
        )
