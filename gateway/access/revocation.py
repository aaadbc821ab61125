"""What was allowed once is asked again: live connections lose what their keys, grants and permissions lose.

Who publishes is asked for each message, so a right that is gone is worth nothing at once. Who listens, or is being told
a history, asks nothing any more. When rights change, every connection is looked at: one whose key was removed or has
expired is closed, and so is one that goes on with what it may not. Looking takes slices of the loop's time, as somebody
may listen to much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from gateway.core.bus import Bus
from gateway.core.member import Member

from .auth import Access

SLICE = 1_000  # questions in one turn of the loop, about a millisecond
POLICY = 1008  # RFC 6455, section 7.4.1: a policy is violated
KEY_ENDED = "the API key of this connection was removed or has expired"
RIGHT_ENDED = "a right that this connection needs was taken away"


class Revocation:
    """Closes the connections of *bus* that *access* does not allow any more; *post* runs a call on the loop."""

    def __init__(self, access: Access, bus: Bus, post: Callable[[Callable[[], None]], None]) -> None:
        self._access = access
        self._bus = bus
        self._post = post
        self._under_way: Iterator[None] | None = None
        access.on_change.append(self.begin)

    def begin(self) -> None:
        """Look at every connection, from the first on, also where a look is under way."""
        idle = self._under_way is None
        self._under_way = self._look()
        if idle:
            self._post(self._go_on)

    def _go_on(self) -> None:
        assert self._under_way is not None
        if sum(1 for _ in islice(self._under_way, SLICE)) == SLICE:
            self._post(self._go_on)
        else:
            self._under_way = None

    def _look(self) -> Iterator[None]:
        """One step for each question that is asked."""
        for session in self._bus.sessions():
            if session.closing is None:
                yield from self._look_at(session)

    def _look_at(self, session: Member) -> Iterator[None]:
        if self._access.key_has_ended(session.principal):
            session.close(POLICY, KEY_ENDED)
        for channel in tuple(session.channels):
            yield
            if session.closing is not None or channel not in session.channels:
                continue
            if not self._access.allowed(session.subscription_principal(channel), "subscribe", channel):
                session.close(POLICY, RIGHT_ENDED)
        if session.closing is None and not session.is_still_allowed():
            session.close(POLICY, RIGHT_ENDED)
        yield
