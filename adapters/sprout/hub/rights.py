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

PEER: Final = "sprout:peer"  # the principal of dialled relays, which carry many authors and are never throttled


class Rights:
    """Rights in terms of nodes, by those of *bus*; *known* tells whether a principal has any right at all."""

    def __init__(self, bus: Bus, store: Store, known: Callable[[Principal], bool]) -> None:
        self._bus = bus
        self._store = store
        self._known = known

    def is_known(self, session: SproutConnection) -> bool:
        """Whether a connection has any right at all."""
        return self._known(session.principal)

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
            return session.exchanges("history") and self.is_known(session)
        if info.type == COMMUNITY:
            channel = find_channel(info.key, self._bus.channels, self._store)
            return channel is None or self.may_know(session, channel)
        return self.allows(session, "history", info.channel)

    def admit(self, session: SproutConnection, verb: str, channel: str, author: str | None = None) -> None:
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

    def may_enter(self, session: SproutConnection, author: str) -> bool:
        """Whether a connection may announce the identity *author*: it or the author has any right at all."""
        known = self.is_known(session) or self._known(_as_author(session, author))
        return known and session.exchanges("publish")

    def pace(self, session: SproutConnection, channel: str, names: int = 1) -> None:
        """Raise `Throttled` if a connection exceeds its rate of requests about *channel*.

        A request that names several things counts as that many.
        """
        if session.principal.name != PEER:
            session.pace(channel)
            if names > 1:
                self._bus.charge(session.network, names - 1)


def _as_author(session: SproutConnection, author: str) -> Principal:
    """The principal of *author* in `auth.grants`, at the address of *session*."""
    return session.principal._replace(name=f"{NAME}:{author}", key="")
