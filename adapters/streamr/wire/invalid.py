"""The errors for stream messages that may not be published, in the words of the libraries' validator."""

from __future__ import annotations

from gateway.core.errors import RequestError

from .message import LATEST, StreamMessage

MAX_SHOWN = 1_000  # characters of a refused message that the error repeats


class Invalid(RequestError):
    """A message that may not be published; the text is the validator's."""


class Forged(Invalid):
    """A message that its publisher did not sign."""


def invalid(reason: str, message: StreamMessage) -> Invalid:
    """The error of the library's validator, which shows the message."""
    return Invalid(f"{reason}. Message: {shown(message)}")


def forged(message: StreamMessage) -> Forged:
    """The error of a message with a signature that is not its publisher's."""
    return Forged(f"Signature validation failed for message: {shown(message)}")


def shown(message: StreamMessage) -> str:
    """The beginning of *message*, in the latest version."""
    return message.encode(LATEST).decode()[:MAX_SHOWN]
