"""What a connection may do on Sprout: know of a channel, read a node, bring one, and how often it may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from adapters.sprout.store.store import Store
from adapters.sprout.store.tables import COMMUNITY, IDENTITY, NAME, NodeInfo
from gateway.core.bus import Bus
from gateway.core.errors import Forbidden
from gateway.core.principal import Principal
from gateway.core.session import Session

from .naming import find_channel

PEER: Final = "sprout:peer"  # who is dialled: the operator chose it, and many speak through it, so it is never paced


class Rights:
    """The rights that *bus* tells of, asked as nodes need them; *known* tells who may do anything at all."""

    def __init__(self, bus: Bus, store: Store, known: Callable[[Principal], bool]) -> None:
        self._bus = bus
        self._store = store
        self._known = known

    def is_known(self, session: Session) -> bool:
        """Whether a connection may do anything at all."""
        return self._known(session.principal)

    def may_know(self, session: Session, channel: str) -> bool:
        """Whether a connection may know that there is *channel*."""
        return any(self._bus.allowed(session.principal, verb, channel) for verb in ("subscribe", "history", "publish"))

    def may_read(self, session: Session, info: NodeInfo) -> bool:
        """Whether a connection may read the node at *spot*."""
        if info.type == IDENTITY:
            return self.is_known(session)
        if info.type == COMMUNITY:
            channel = find_channel(info.key, self._bus.channels, self._store)
            return channel is None or self.may_know(session, channel)
        return self._bus.allowed(session.principal, "history", info.channel)

    def admit(self, session: Session, verb: str, channel: str, author: str | None = None) -> None:
        """Raise `Forbidden` unless a connection may *verb* on *channel*; the rate was asked before.

        What a node says may be said as well where its *author* may say it, whoever brings it.
        """
        if self._bus.allowed(session.principal, verb, channel):
            return
        if author is None or not self._bus.allowed(_as_author(session, author), verb, channel):
            raise Forbidden(verb, channel)

    def may_enter(self, session: Session, author: str) -> bool:
        """Whether the identity *author* may be brought: by who may do anything, or where the author may."""
        return self.is_known(session) or self._known(_as_author(session, author))

    def pace(self, session: Session, channel: str) -> None:
        """Raise `Throttled` if a connection asks too often; *channel* is what it asks about."""
        if session.principal.name != PEER:
            session.pace(channel)


def _as_author(session: Session, author: str) -> Principal:
    """Who *author* is to `auth.grants`, from where *session* comes."""
    return session.principal._replace(name=f"{NAME}:{author}", key="")
