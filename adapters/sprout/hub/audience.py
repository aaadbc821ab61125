"""Who is connected, and which of them is told of an identity, a community, or a channel that has begun."""

from __future__ import annotations

from adapters.sprout.mint.signing import PendingNode

from .connection import SproutConnection
from .rights import Rights


class Audience:
    """The connections, each of which is told as much as its *rights* allow."""

    def __init__(self, rights: Rights) -> None:
        self.sessions: dict[SproutConnection, None] = {}
        self._rights = rights

    def announce(self, line: bytes, channel: str = "", *, skip: SproutConnection | None = None) -> None:
        """Announce an identity, or the community of *channel*, to every connection but one that may know of it."""
        for session in self.sessions:
            if session is not skip and (self._may_be_told(session, channel)):
                session.announce(line)

    def announce_minted(self, made: PendingNode, channel: str) -> None:
        """Announce a node that is being made: at its place to who listens to *channel*, to others once it is there."""
        others = []
        for session in self.sessions:
            if channel in session.channels:
                session.announce(made.line)
            elif self._rights.is_known(session):
                others.append(session)

        def tell_others() -> None:
            if made.line.data is not None:
                for session in others:
                    session.announce(made.line.data)

        made.line.when_done(tell_others)

    def community_added(self, community: str) -> None:
        """*community* is a channel, or the same as one, from now on."""
        for session in list(self.sessions):
            session.community_added(community)

    def _may_be_told(self, session: SproutConnection, channel: str) -> bool:
        return self._rights.may_know(session, channel) if channel else self._rights.is_known(session)
