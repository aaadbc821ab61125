"""Control frames as values, and the tables of their fields in versions 1 and 2.

A class per shape, not per type and version: what differs between the versions is the order of fields,
and that is data. `adapters.streamr.wire.codec` reads and writes frames by these tables, and
`adapters.streamr.sessions.session` handles each type. docs/protocols.md defines S0, S1, S2 and "the libraries".
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar, Final

from msgspec import Struct

from .message import MessageRef, StreamMessage

# The request id that the libraries give a frame of version 1 without a `subId`.
NO_REQUEST_ID = "PLACEHOLDER_REQUEST_ID_PROTOCOL_V1"


class ControlType(IntEnum):
    """The fourteen types of the control protocol (S0, Control Protocol)."""

    BROADCAST = 0
    UNICAST = 1
    SUBSCRIBED = 2
    UNSUBSCRIBED = 3
    RESENDING = 4
    RESENT = 5
    NO_RESEND = 6
    ERROR = 7
    PUBLISH = 8
    SUBSCRIBE = 9
    UNSUBSCRIBE = 10
    RESEND_LAST = 11
    RESEND_FROM = 12
    RESEND_RANGE = 13


class Frame(Struct, kw_only=True):
    """The fields of every control frame. In version 1 the id is the `subId`, text or number, or `NO_REQUEST_ID`."""

    request_id: str | int = ""
    version: int = 2


class ClientRequest(Frame, kw_only=True):
    """A client wants something, on behalf of the user of the session token, or of S1's API key."""

    session_token: str | None = None
    api_key: str | None = None


class PublishRequest(ClientRequest, kw_only=True):
    """A client publishes a message on a stream."""

    type: ClassVar = ControlType.PUBLISH
    message: StreamMessage


class SubscribeRequest(ClientRequest, kw_only=True):
    """A client wants new messages of a stream partition."""

    type: ClassVar = ControlType.SUBSCRIBE
    stream_id: str
    stream_partition: int = 0


class UnsubscribeRequest(Frame, kw_only=True):
    """A client wants no more messages of a stream partition."""

    type: ClassVar = ControlType.UNSUBSCRIBE
    stream_id: str
    stream_partition: int = 0


class ResendRequest(ClientRequest, kw_only=True):
    """A client wants stored messages: the last `number_last`, or those from `from_ref` (up to `to_ref`).

    Both ends are included. A reference without a sequence number means its whole millisecond. S1's single
    ResendRequest becomes one of the three: all is from the beginning, its offsets are timestamps.
    """

    stream_id: str
    stream_partition: int = 0
    number_last: int | None = None
    from_ref: MessageRef | None = None
    to_ref: MessageRef | None = None
    publisher_id: str | None = None
    msg_chain_id: str | None = None

    @property
    def type(self) -> ControlType:
        """RESEND_LAST, RESEND_FROM or RESEND_RANGE."""
        if self.number_last is not None:
            return ControlType.RESEND_LAST
        return ControlType.RESEND_FROM if self.to_ref is None else ControlType.RESEND_RANGE


class MessageDelivery(Frame, kw_only=True):
    """A message for a subscriber (BROADCAST) or in answer to a resend request (UNICAST)."""

    type: ControlType
    message: StreamMessage


class StreamResponse(Frame, kw_only=True):
    """The outcome of a request: SUBSCRIBED, UNSUBSCRIBED, RESENDING, RESENT or NO_RESEND."""

    type: ControlType
    stream_id: str
    stream_partition: int = 0


class ErrorResponse(Frame, kw_only=True):
    """A request was refused, or failed; version 1 shows neither `error_code` nor `request_id`."""

    type: ClassVar = ControlType.ERROR
    error_message: str
    error_code: str = "UNKNOWN"


ControlFrame = (
    PublishRequest
    | SubscribeRequest
    | UnsubscribeRequest
    | ResendRequest
    | MessageDelivery
    | StreamResponse
    | ErrorResponse
)


def _is_flag(elements: list[Any]) -> bool:
    return bool(elements) and (elements[0] is None or type(elements[0]) is bool)


# fmt: off
# The fields that follow the version and the type in each frame. The specifications and the libraries agree on
# version 2; the fields of version 1 are those that the libraries send and can read.
_PARTITION = ("streamId", "streamPartition")
_CHAIN = ("publisherId", "msgChainId")
CONTROL: Final[dict[int, dict[ControlType, tuple[str, ...]]]] = {
    1: {
        ControlType.BROADCAST:    ("streamMessage",),
        ControlType.UNICAST:      ("subId", "streamMessage"),
        ControlType.SUBSCRIBED:   _PARTITION,
        ControlType.UNSUBSCRIBED: _PARTITION,
        ControlType.RESENDING:    (*_PARTITION, "subId"),
        ControlType.RESENT:       (*_PARTITION, "subId"),
        ControlType.NO_RESEND:    (*_PARTITION, "subId"),
        ControlType.ERROR:        ("errorMessage",),
        ControlType.PUBLISH:      ("streamMessage", "sessionToken"),
        ControlType.SUBSCRIBE:    (*_PARTITION, "sessionToken"),
        ControlType.UNSUBSCRIBE:  _PARTITION,
        ControlType.RESEND_LAST:  (*_PARTITION, "subId", "numberLast", "sessionToken"),
        ControlType.RESEND_FROM:  (*_PARTITION, "subId", "fromMsgRef", *_CHAIN, "sessionToken"),
        ControlType.RESEND_RANGE: (*_PARTITION, "subId", "fromMsgRef", "toMsgRef", *_CHAIN, "sessionToken"),
    },
    2: {
        ControlType.BROADCAST:    ("requestId", "streamMessage"),
        ControlType.UNICAST:      ("requestId", "streamMessage"),
        ControlType.SUBSCRIBED:   ("requestId", *_PARTITION),
        ControlType.UNSUBSCRIBED: ("requestId", *_PARTITION),
        ControlType.RESENDING:    ("requestId", *_PARTITION),
        ControlType.RESENT:       ("requestId", *_PARTITION),
        ControlType.NO_RESEND:    ("requestId", *_PARTITION),
        ControlType.ERROR:        ("requestId", "errorMessage", "errorCode"),
        ControlType.PUBLISH:      ("requestId", "streamMessage", "sessionToken"),
        ControlType.SUBSCRIBE:    ("requestId", *_PARTITION, "sessionToken"),
        ControlType.UNSUBSCRIBE:  ("requestId", *_PARTITION),
        ControlType.RESEND_LAST:  ("requestId", *_PARTITION, "numberLast", "sessionToken"),
        ControlType.RESEND_FROM:  ("requestId", *_PARTITION, "fromMsgRef", "publisherId", "sessionToken"),
        ControlType.RESEND_RANGE: ("requestId", *_PARTITION, "fromMsgRef", "toMsgRef", *_CHAIN, "sessionToken"),
    },
}

# Forms that only a specification has: how to recognise the array, and its fields.
VARIANTS: Final[dict[tuple[int, ControlType], tuple[Callable[[list[Any]], bool], tuple[str, ...]]]] = {
    # S1 has an apiKey before the session token.
    (1, ControlType.PUBLISH):     (lambda frame: len(frame) > 4, ("streamMessage", "apiKey", "sessionToken")),
    (1, ControlType.SUBSCRIBE):   (lambda frame: len(frame) > 5, (*_PARTITION, "apiKey", "sessionToken")),
    # S1 has one ResendRequest; its resend_all stands where the libraries write a number.
    (1, ControlType.RESEND_LAST): (lambda frame: len(frame) == 9 or _is_flag(frame[5:6]),
                                   (*_PARTITION, "subId", "resendAll", "resendLast", "resendFrom", "resendTo")),
    # S1 names no subscription in these.
    (1, ControlType.RESENDING):   (lambda frame: len(frame) < 5, _PARTITION),
    (1, ControlType.NO_RESEND):   (lambda frame: len(frame) < 5, _PARTITION),
    # S0 adds the msgChainId; the libraries would take it for the session token.
    (2, ControlType.RESEND_FROM): (lambda frame: len(frame) > 8,
                                   ("requestId", *_PARTITION, "fromMsgRef", *_CHAIN, "sessionToken")),
    # S2 leaves the requestId out of its example of a wrapped SubscribeRequest.
    (2, ControlType.SUBSCRIBE):   (lambda frame: len(frame) in (4, 5) and type(frame[3]) is int,
                                   (*_PARTITION, "sessionToken")),
}

FRAMES: Final[dict[ControlType, Callable[..., ControlFrame]]] = {
    ControlType.BROADCAST:    partial(MessageDelivery, type=ControlType.BROADCAST),
    ControlType.UNICAST:      partial(MessageDelivery, type=ControlType.UNICAST),
    ControlType.SUBSCRIBED:   partial(StreamResponse, type=ControlType.SUBSCRIBED),
    ControlType.UNSUBSCRIBED: partial(StreamResponse, type=ControlType.UNSUBSCRIBED),
    ControlType.RESENDING:    partial(StreamResponse, type=ControlType.RESENDING),
    ControlType.RESENT:       partial(StreamResponse, type=ControlType.RESENT),
    ControlType.NO_RESEND:    partial(StreamResponse, type=ControlType.NO_RESEND),
    ControlType.ERROR:        ErrorResponse,
    ControlType.PUBLISH:      PublishRequest,
    ControlType.SUBSCRIBE:    SubscribeRequest,
    ControlType.UNSUBSCRIBE:  UnsubscribeRequest,
    ControlType.RESEND_LAST:  ResendRequest,
    ControlType.RESEND_FROM:  ResendRequest,
    ControlType.RESEND_RANGE: ResendRequest,
}
# fmt: on
