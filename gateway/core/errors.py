"""Two families of errors that a peer can cause, one for operators, and one for stored bytes; all others are bugs.

A `RequestError` refuses one request: it is answered with the protocol's own error, and the connection stays open. A
`ProtocolError` means that the framing is lost: a last answer is queued, then the connection ends. Attributes carry what
the wire needs; adapters turn them into their own form. An `OperatorError` ends a command, or says why the gateway
stops. `InvalidData` is raised where bytes of the disk or of a cluster are decoded; the caller skips and reports them.
"""

from __future__ import annotations

from collections.abc import Sequence

# What a peer is told after a bug, which the program's own log describes.
INTERNAL_ERROR = "the gateway has a fault; tell its operator, who finds the cause in the program's log"


class RequestError(Exception):
    """A request is refused; the connection stays open."""


class AlreadySubscribed(RequestError):
    """The session listens to this channel already."""


class NotSubscribed(RequestError):
    """The session does not listen to this channel."""


VERBS = {  # of rights, in words
    "subscribe": "subscribe to",
    "publish": "publish on",
    "direct": "send direct messages on",
    "history": "read the history of",
    "admin": "administer",
}


class Forbidden(RequestError):
    """The principal has no right to do this."""

    def __init__(self, verb: str, channel: str) -> None:
        everything = "the gateway" if verb == "admin" else "all channels"
        super().__init__(f"not allowed to {VERBS[verb]} {repr(channel) if channel else everything}")
        self.verb = verb
        self.channel = channel


class UnknownChannel(RequestError):
    """There is no such channel, and users cannot create it."""


class TooManyChannels(RequestError):
    """The limit of channels is reached; existing channels can be used."""


class TooManySubscriptions(RequestError):
    """The session has reached the limit of subscriptions."""


class Conflict(RequestError):
    """The id belongs to an earlier message with other content."""


class SearchRefused(RequestError):
    """A search has no words, or too many."""


class SearchTooLong(RequestError):
    """A search was stopped because it took too long."""


class Unavailable(RequestError):
    """The log accepts no messages at the moment; nothing was accepted."""


class OutcomeUnknown(RequestError):
    """The log fails: the request may be accepted later, or be lost. Repeat it with the same id or key to find out."""


class Failed(RequestError):
    """A bug kept the request from being carried out; the log says more."""


class Incomplete(RequestError):
    """A transferred message refers to others that are not held; it may be sent again after them."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(f"it needs {' and '.join(missing)}, which this gateway does not have")
        self.missing = missing


class Throttled(RequestError):
    """The rate limit is exceeded; try again later."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(f"too many requests, try again in {retry_after_seconds:.1f} s")
        self.retry_after_seconds = retry_after_seconds


class ProtocolError(Exception):
    """The peer broke its protocol beyond repair; the connection ends."""


class OperatorError(Exception):
    """An operator can correct this; the text says what is wrong and, where it is not obvious, what to do about it."""


class InvalidData(ValueError):
    """Bytes that no peer sent, from a file or from a cluster, are not what they should be; the text says why."""
