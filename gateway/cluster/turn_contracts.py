"""What a turn calls: the gateway, and the connection to the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.storage.record import Entry


class TurnCallbacks(Protocol):
    """What the gateway does when its turn begins or ends, and with what the stream brings."""

    def take(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Log *lines* of another gateway, whose records are *entries*."""

    def confirm(self, entries: Sequence[Entry], lines: list[bytes]) -> None:
        """Write *lines* that this gateway logged, which the stream has now."""

    def begin(self) -> None:
        """Accept: it is this gateway's turn."""

    def hold(self, why: str | None) -> None:
        """Let publishers wait; refuse them if there is a reason (*why*)."""

    def removed(self) -> None:
        """End: an operator removed this gateway from the cluster."""

    def turn_lost(self) -> None:
        """End: another gateway claimed the turn, and what this one accepted is not in the stream."""

    def stream_damaged(self) -> None:
        """End: the stream, as it is read here, lacks a batch that others have."""


class TurnTransport(Protocol):
    """The connection to the stream, as the turn uses it."""

    def publish(self, data: bytes) -> None:
        """Append *data* to the stream, and retry until it is there; it may be there more than once."""

    def want(self, member: str, batches: int) -> None:
        """Tell all others that *member* wants the turn, after so many *batches* that counted; it may be lost."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Run *call* on the gateway's loop after *seconds*."""

    def answers(self) -> bool:
        """Whether the servers of the stream answer."""
