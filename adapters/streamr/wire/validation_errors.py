"""The errors for stream messages that may not be published, in the words of the libraries' validator."""

from __future__ import annotations

from gateway.core.errors import RequestError

from .message import LATEST, StreamMessage

MAX_SHOWN = 1_000  # characters of a refused message that the error repeats


class InvalidMessage(RequestError):
    """A message that may not be published; the text is the validator's."""


class InvalidSignature(InvalidMessage):
    """A message that its publisher did not sign."""


def invalid_message(reason: str, message: StreamMessage) -> InvalidMessage:
    """The error of the library's validator, which shows the message."""
    return InvalidMessage(f"{reason}. Message: {excerpt(message)}")


def invalid_signature(message: StreamMessage) -> InvalidSignature:
    """The error of a message with a signature that is not its publisher's."""
    return InvalidSignature(f"Signature validation failed for message: {excerpt(message)}")


def excerpt(message: StreamMessage) -> str:
    """The beginning of *message*, in the latest version."""
    return message.encode(LATEST).decode()[:MAX_SHOWN]
