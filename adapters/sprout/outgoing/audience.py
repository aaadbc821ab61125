"""Announces identities, communities and new channels to the connections that may know of them."""

from __future__ import annotations

from functools import partial

from adapters.sprout.hub.connection import SproutConnection
from adapters.sprout.hub.rights import Rights
from adapters.sprout.mint.signing import PendingNode


class Audience:
    """All connections; each gets the announcements that its *rights* allow."""

    def __init__(self, rights: Rights) -> None:
        self.sessions: dict[SproutConnection, None] = {}
        self._rights = rights

    def announce(self, line: bytes, channel: str = "", *, skip: SproutConnection | None = None) -> None:
        """Announce an identity, or the community of *channel*, to all who may know of it, except *skip*."""
        for session in self.sessions:
            if session is not skip and (self._may_be_told(session, channel)):
                session.announce(line)

    def announce_minted(self, made: PendingNode, channel: str, is_community: bool) -> None:
        """Announce a node that is being signed: in order to listeners of *channel*, to all others once it is signed.

        The others are the connections open when signing ends, since one that was opened meanwhile cannot have found the
        node. An identity is announced to all, the community of *channel* to those who may know that the channel exists.
        """
        listeners = {session: None for session in self.sessions if channel in session.channels}
        for session in listeners:
            session.announce(made.line)
        may_be_told = partial(self._rights.may_know, channel=channel) if is_community else self._rights.has_any_right

        def tell_others() -> None:
            if (line := made.line.data) is None:
                return
            for session in self.sessions:
                if session not in listeners and session.exchanges("subscribe", channel) and may_be_told(session):
                    session.announce(line)

        made.line.when_done(tell_others)

    def community_added(self, community: str) -> None:
        """Tell all connections that *community* belongs to a channel from now on."""
        for session in list(self.sessions):
            session.community_added(community)

    def _may_be_told(self, session: SproutConnection, channel: str) -> bool:
        if channel:
            return self._rights.may_know(session, channel)
        return session.exchanges("subscribe", "") and self._rights.has_any_right(session)
