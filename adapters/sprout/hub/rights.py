"""What a connection may do on Sprout: know of a channel, read or announce a node, and how often it may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import COMMUNITY, IDENTITY, NAME, NodeInfo
from gateway.core.bus import Bus
from gateway.core.errors import Forbidden
from gateway.core.principal import Principal

from .connection import SproutConnection
from .naming import find_channel

LINK_PRINCIPAL: Final = "sprout:peer"  # of dialled relays, which carry many authors and are never throttled


class Rights:
    """Rights in terms of nodes, by those of *bus*; *has_any_right* tells whether a principal has any right at all."""

    def __init__(self, bus: Bus, store: Store, has_any_right: Callable[[Principal], bool]) -> None:
        self._bus = bus
        self._store = store
        self._has_any_right = has_any_right

    def has_any_right(self, session: SproutConnection) -> bool:
        """Whether a connection has any right at all."""
        return self._has_any_right(session.principal)

    def allows(self, session: SproutConnection, verb: str, channel: str) -> bool:
        """Whether a connection may *verb* on *channel*."""
        return session.exchanges(verb, channel) and self._bus.allowed(session.principal, verb, channel)

    def may_know(self, session: SproutConnection, channel: str) -> bool:
        """Whether a connection may know that *channel* exists."""
        if not session.exchanges("history", channel):
            return False
        return any(self._bus.allowed(session.principal, verb, channel) for verb in ("subscribe", "history", "publish"))

    def may_read(self, session: SproutConnection, info: NodeInfo) -> bool:
        """Whether a connection may read the node *info*."""
        if info.type == IDENTITY:
            return session.exchanges("history") and self.has_any_right(session)
        if info.type == COMMUNITY:
            channel = find_channel(info.key, self._bus.channels, self._store)
            return channel is None or self.may_know(session, channel)
        return self.allows(session, "history", info.channel)

    def check(self, session: SproutConnection, verb: str, channel: str, author: str | None = None) -> None:
        """Raise `Forbidden` unless a connection may *verb* on *channel*, or the *author* of the node it brings may.

        `pace` checks the rate before.
        """
        if self.allows(session, verb, channel):
            return
        if (
            not session.exchanges(verb, channel)
            or author is None
            or not self._bus.allowed(_as_author(session, author), verb, channel)
        ):
            raise Forbidden(verb, channel)

    def may_announce_identity(self, session: SproutConnection, author: str) -> bool:
        """Whether a connection may announce the identity *author*: it or the author has any right at all."""
        has_right = self.has_any_right(session) or self._has_any_right(_as_author(session, author))
        return has_right and session.exchanges("publish")

    def pace(self, session: SproutConnection, channel: str, names: int = 1) -> None:
        """Raise `Throttled` if a connection exceeds its rate of requests about *channel*.

        A request that names several things counts as that many.
        """
        if session.principal.name != LINK_PRINCIPAL:
            session.pace(channel)
            if names > 1:
                self._bus.charge(session.network, names - 1)


def _as_author(session: SproutConnection, author: str) -> Principal:
    """The principal of *author* in `auth.grants`, at the address of *session*."""
    return session.principal._replace(name=f"{NAME}:{author}", key="")
