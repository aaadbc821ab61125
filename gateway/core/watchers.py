"""Sessions that listen to every channel whose name begins with a prefix, also to channels that begin later.

A watcher is not in these channels: it causes and receives no presence notices. A prefix costs nothing until a message
is published, and finding the watchers of a channel takes as many steps as its name has characters, however many
watchers there are.
"""

from __future__ import annotations

from .errors import AlreadySubscribed, NotSubscribed, TooManySubscriptions
from .subscriber import Subscriber

MAX_PREFIXES = 100  # of one session
PREFIXES_EXHAUSTED = (
    f"this connection listens to {MAX_PREFIXES} patterns already, the most that one may have; unsubscribe from one, or "
    "use another connection"
)


class Watchers:
    """The watchers of all prefixes; the empty prefix is that of every channel."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[Subscriber, None]] = {}  # by prefix
        self.prefixes: dict[Subscriber, dict[str, None]] = {}  # by watcher

    def add(self, session: Subscriber, prefix: str) -> None:
        """Let *session* watch *prefix*; raises `AlreadySubscribed` or `TooManySubscriptions`."""
        prefixes = self.prefixes.get(session, {})
        if prefix in prefixes:
            raise AlreadySubscribed(f"{prefix}*")
        if len(prefixes) >= MAX_PREFIXES:
            raise TooManySubscriptions(PREFIXES_EXHAUSTED)
        self.prefixes.setdefault(session, {})[prefix] = None
        self._sessions.setdefault(prefix, {})[session] = None

    def remove(self, session: Subscriber, prefix: str) -> None:
        """Let *session* watch *prefix* no more; raises `NotSubscribed` unless it did."""
        prefixes = self.prefixes.get(session, {})
        if prefix not in prefixes:
            raise NotSubscribed(f"{prefix}*")
        del prefixes[prefix], self._sessions[prefix][session]
        if not prefixes:
            del self.prefixes[session]
        if not self._sessions[prefix]:
            del self._sessions[prefix]

    def discard(self, session: Subscriber) -> None:
        """Remove *session*, which has ended."""
        for prefix in list(self.prefixes.get(session, ())):
            self.remove(session, prefix)

    def of(self, channel: str) -> list[Subscriber]:
        """The watchers of *channel*, each once."""
        found: dict[Subscriber, None] = {}
        for size in range(len(channel) + 1):
            if (sessions := self._sessions.get(channel[:size])) is not None:
                found |= sessions
        return list(found)
