"""Revocation: live connections lose what their keys, grants and permissions lose.

Publishing is checked for each message, so a revoked right has no effect at once. Listening and receiving history are
checked only when they begin. Therefore every connection is checked when rights change: one whose key was removed or has
expired is closed, and so is one that does something which it may no longer do. The checks are made in slices of the
loop's time, since a connection may listen to many channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from gateway.core.bus import Bus
from gateway.core.subscriber import Subscriber

from .authorization import Access

SLICE = 1_000  # checks in one turn of the loop, about a millisecond
POLICY = 1008  # RFC 6455, section 7.4.1: a policy is violated
KEY_ENDED = "the API key of this connection was removed or has expired"
RIGHT_ENDED = "a right that this connection needs was taken away"


class Revocation:
    """Closes the connections of *bus* that *access* no longer allows; *post* runs a call on the loop."""

    def __init__(self, access: Access, bus: Bus, post: Callable[[Callable[[], None]], None]) -> None:
        self._access = access
        self._bus = bus
        self._post = post
        self._checks: Iterator[None] | None = None
        access.on_change.append(self.begin)

    def begin(self) -> None:
        """Check every connection, starting again if a check is under way."""
        idle = self._checks is None
        self._checks = self._check_all()
        if idle:
            self._post(self._run_slice)

    def _run_slice(self) -> None:
        assert self._checks is not None
        if sum(1 for _ in islice(self._checks, SLICE)) == SLICE:
            self._post(self._run_slice)
        else:
            self._checks = None

    def _check_all(self) -> Iterator[None]:
        """Yield once for each check."""
        for session in self._bus.sessions():
            if session.closing is None:
                yield from self._check_session(session)

    def _check_session(self, session: Subscriber) -> Iterator[None]:
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
