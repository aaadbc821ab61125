"""The texts and codes of refused requests: those that the reference's broker gives."""

from __future__ import annotations

from gateway.core.errors import Forbidden, NotSubscribed, RequestError, UnknownChannel

from . import errors as codes
from .control import ControlFrame, ControlType, PublishRequest, ResendRequest, SubscribeRequest, UnsubscribeRequest
from .errors import StreamrError

# fmt: off
# The broker's wording for each request.
PHRASES: dict[ControlType, tuple[str, str, str]] = {
    ControlType.PUBLISH:     ("Publish", "publish", "write to"),
    ControlType.SUBSCRIBE:   ("Subscribe", "subscribe", "subscribe to"),
    ControlType.UNSUBSCRIBE: ("Unsubscribe", "unsubscribe", "unsubscribe from"),
}
# fmt: on


class Unauthenticated(RequestError):
    """The request needs a valid session token or API key, and carries none."""


def refusal(frame: ControlFrame, error: RequestError) -> tuple[str, str]:
    """The text and the code by which the reference's broker refuses *frame*."""
    stream, partition = stream_partition_of(frame)
    request, try_to, allowed_to = PHRASES.get(frame.type, ("Resend", "resend", "resend from"))
    match error:
        case StreamrError():
            return error.message, error.code
        case Unauthenticated():
            return f"Authentication failed while trying to {try_to} to stream {stream}", codes.AUTHENTICATION_FAILED
        case Forbidden():
            return f"You are not allowed to {allowed_to} stream {stream}", codes.PERMISSION_DENIED
        case UnknownChannel():
            return f"Stream {stream} not found.", codes.NOT_FOUND
        case NotSubscribed():
            return f"Not subscribed to stream {stream} partition {partition}!", codes.INVALID_REQUEST
        case _:
            return f"{request} request failed: {error}", codes.REQUEST_FAILED


def stream_partition_of(frame: ControlFrame) -> tuple[str, int]:
    """The stream and the partition that *frame* concerns; an empty id and 0 if it concerns none."""
    if isinstance(frame, SubscribeRequest | UnsubscribeRequest | ResendRequest):
        return frame.stream_id, frame.stream_partition
    return frame.message.id[:2] if isinstance(frame, PublishRequest) else ("", 0)
