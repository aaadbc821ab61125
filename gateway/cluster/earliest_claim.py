"""The earliest time at which another member may claim the turn from this one: so long the turn is surely its own.

Others claim the turn a lease after the last batch came into the stream. When that was, this member does not know, only
when it read the batch. But it knows of something that came before: it sent its own batch before that came into the
stream, and it asked for the turn before it got it.
"""

from __future__ import annotations

from typing import Final

REST_SHARE: Final = 0.6  # of the lease, after which the holder rests


class EarliestClaim:
    """The time from which others may claim the turn, at the earliest; times and the *lease* are in seconds."""

    def __init__(self, lease: float, now: float) -> None:
        self._rest_seconds = REST_SHARE * lease
        self._since = now  # when the last batch was not yet in the stream; others claim the turn a lease later

    def came_back(self, sent: float) -> None:
        """Note that a batch that this member had *sent* at that time came into the stream."""
        self._since = sent

    def granted(self, asked: float) -> None:
        """Note that a batch came into the stream that gives this member the turn because it has *asked* since then."""
        self._since = max(self._since, asked)

    def is_near(self, now: float) -> bool:
        """Whether it comes before long, so that the holder rests."""
        return now - self._since > self._rest_seconds
