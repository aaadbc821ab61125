"""Two families of errors that a peer can cause; everything else is a bug.

A `RequestError` is one request refused: it is answered in the protocol's own words and the
connection lives. A `ProtocolError` means that the framing is lost: the farewell is queued, then the
connection ends. Attributes carry what the wire needs, adapters turn them into their own form.
"""

from __future__ import annotations


class RequestError(Exception):
    """A request that cannot be honoured; the connection lives."""


class AlreadySubscribed(RequestError):
    """The session listens to this channel already."""


class NotSubscribed(RequestError):
    """The session does not listen to this channel."""


class Forbidden(RequestError):
    """The principal has no right to do this."""

    def __init__(self, verb: str, channel: str) -> None:
        super().__init__(f"not allowed to {verb} on {channel!r}")
        self.verb = verb
        self.channel = channel


class UnknownChannel(RequestError):
    """No such channel, and channels do not come into being by themselves here."""


class TooManyChannels(RequestError):
    """There are as many channels as there may be; those that there are can be used."""


class TooManySubscriptions(RequestError):
    """The session listens to as many channels as one may."""


class Conflict(RequestError):
    """An id that is known already came back with other content."""


class Unavailable(RequestError):
    """The log cannot take messages at the moment; nothing was accepted."""


class OutcomeUnknown(RequestError):
    """The log fails: what was taken may be accepted later, or be lost. Ask again, with the same id or key."""


class Throttled(RequestError):
    """More than the rate limit allows; try again later."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(f"too many requests, try again in {retry_after_seconds:.1f} s")
        self.retry_after_seconds = retry_after_seconds


class ProtocolError(Exception):
    """The peer broke its protocol beyond repair; the connection ends."""
