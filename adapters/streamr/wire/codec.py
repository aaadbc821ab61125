"""Reads and writes control frames, by the tables of `adapters.streamr.wire.control`.

Accepted: what the libraries send in versions 1 and 2, and the forms only S1, S2 or S0 describe. Written:
what the libraries can read. Whatever the bytes, `decode_control` ends in a frame or a `StreamrError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.core import jsontext

from . import checks
from .checks import MAX_ID, UNDEFINED
from .control import CONTROL, FRAMES, NO_REQUEST_ID, VARIANTS, ControlFrame, ControlType, PublishRequest
from .errors import StreamrError
from .ids import NAME
from .message import (
    LATEST,
    MessageRef,
    StreamMessage,
    decode_message,
    decode_message_fast,
    decode_ref,
    parse_message,
)
from .message_layouts import LAYOUTS

# The keys of a message's forms on the bus, by the versions of the control frame and of the message in it.
FORM_KEYS: Final = {(control, message): f"{NAME}/{control}/{message}" for control in CONTROL for message in LAYOUTS}

# Types that need an id: without one, a resend could not be told from another.
_REQUIRES_ID: Final = frozenset(
    {
        ControlType.UNICAST,
        ControlType.RESENDING,
        ControlType.RESENT,
        ControlType.NO_RESEND,
        ControlType.RESEND_LAST,
        ControlType.RESEND_FROM,
        ControlType.RESEND_RANGE,
    }
)

# The libraries take the type as a string as well.
_TYPES: Final = {number: kind for kind in ControlType for number in (int(kind), str(int(kind)))}

# A version 2 requestId at the start of a text that is not JSON as a whole.
_LEADING_ID: Final = re.compile(r'\s*\[\s*2\s*,\s*[0-9]+\s*,\s*("(?:[^"\\\x00-\x1f]|\\.){0,255}")')


def decode_control(data: bytes | str) -> ControlFrame:
    """Read one control frame; a malformed one raises a `StreamrError` with the requestId, if that can be read."""
    return (decode_publish_fast(data) if isinstance(data, bytes) else None) or _decode_any(data)


class _Publish(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The array of a PublishRequest of version 2; the text of its message is left as it is."""

    version: Literal[2]
    type: Literal[8]
    request_id: Annotated[str, Meta(max_length=MAX_ID)]
    message: Raw
    session_token: Annotated[str, Meta(max_length=MAX_ID)] | None


_PUBLISH: Final = msgspec.json.Decoder(_Publish)
_PUBLISH_SIZE, _TOKEN_SIZE = len(b'[2,8,"",,]'), len(b'""')


def decode_publish_fast(wire: bytes) -> PublishRequest | None:
    """Read a PublishRequest in the form that the libraries write; None if `decode_control` has to read it.

    It has no space, and no escape in its id or token: it would be longer. With `decode_message_fast` this takes 2.2 us
    of CPU time where the general reader takes 7.4; a message in a run takes a session about 20.
    """
    if not wire.startswith(b'[2,8,"'):
        return None
    try:
        frame = _PUBLISH.decode(wire)
    except (ValueError, RecursionError):  # of msgspec; a text that is not UTF-8; an array that is nested deeply
        return None
    row, request_id, token = bytes(frame.message), frame.request_id, frame.session_token
    rest = len(b"null") if token is None else _TOKEN_SIZE + len(token.encode())
    if len(wire) != _PUBLISH_SIZE + len(request_id.encode()) + len(row) + rest:
        return None
    message = decode_message_fast(row)
    return None if message is None else PublishRequest(request_id=request_id, session_token=token, message=message)


def _decode_any(data: bytes | str) -> ControlFrame:
    try:
        wire = data if isinstance(data, bytes) else data.encode()
        frame = jsontext.loads(wire, max_values=jsontext.MAX_VALUES)
    except ValueError as error:
        raise StreamrError(f"Invalid JSON: {error}", request_id=_leading_id(data)) from None
    try:
        return _decode(frame if isinstance(frame, list) else [], wire)
    except StreamrError as error:
        error.request_id = _request_id(frame)
        raise


def encode(frame: ControlFrame, version: int, message_version: int = LATEST) -> bytes:
    """Write *frame* in control *version* 1 or 2, a message in it in *message_version*."""
    parts = [b"%d,%d" % (version, frame.type)]
    for name in CONTROL[version][frame.type]:
        value = getattr(frame, FIELDS[name][0])
        if isinstance(value, StreamMessage):
            parts.append(value.encode(message_version))
        elif name == "requestId":
            parts.append(jsontext.dumps(str(value)))
        else:
            parts.append(jsontext.dumps(list(value) if isinstance(value, MessageRef) else value))
    return b"[" + b",".join(parts) + b"]"


def encode_broadcast(version: int, row: bytes) -> bytes:
    """Write a BroadcastMessage around a message array; as the genuine broker, with an empty requestId."""
    return (b"[1,0,%b]" if version == 1 else b'[2,0,"",%b]') % row


def encode_unicast(version: int, request_id: str | int, row: bytes) -> bytes:
    """Write a UnicastMessage around a message array, for the resend called *request_id*."""
    return b"[%d,1,%b,%b]" % (version, jsontext.dumps(request_id if version == 1 else str(request_id)), row)


def _decode(frame: list[Any], wire: bytes) -> ControlFrame:
    version, kind = _version_and_type(frame)
    values: dict[str, Any] = {"version": version, "request_id": NO_REQUEST_ID}
    for index, name in enumerate(_layout(version, kind, frame), 2):
        value = frame[index] if index < len(frame) else UNDEFINED
        if name == "streamMessage":
            values["message"] = _message(value, frame, index, wire)
        else:
            attribute, check = FIELDS[name]
            values[attribute] = check(name, value)
    if kind in _REQUIRES_ID and values["request_id"] == "":
        raise StreamrError("Expected requestId to not be an empty string.")
    if "resend_all" in values:
        _normalise_resend(values)
    _check_order(values.get("from_ref"), values.get("to_ref"))
    return FRAMES[kind](**values)


def _version_and_type(frame: list[Any]) -> tuple[int, ControlType]:
    version = frame[0] if frame else UNDEFINED
    kind = frame[1] if len(frame) > 1 else UNDEFINED
    if type(version) is str and version in map(str, CONTROL):
        checks.integer("version", version)
    version, kind = checks.as_integer(version), checks.as_integer(kind)
    if type(version) is not int or version not in CONTROL:
        raise StreamrError(_unsupported("version", version, CONTROL))
    if type(kind) not in (int, str) or kind not in _TYPES:
        raise StreamrError(_unsupported("type", kind, CONTROL[version]))
    return version, _TYPES[kind]


def _unsupported(what: str, value: Any, supported: Iterable[int]) -> str:
    return (
        f"Unsupported {what}: {checks.js_text(value)},"
        f" message: Supported {what}s: [{','.join(str(int(number)) for number in supported)}]"
    )


def _layout(version: int, kind: ControlType, frame: list[Any]) -> tuple[str, ...]:
    variant = VARIANTS.get((version, kind))
    return variant[1] if variant and variant[0](frame) else CONTROL[version][kind]


def _message(value: Any, frame: list[Any], index: int, wire: bytes) -> StreamMessage:
    if value is None or value is UNDEFINED:
        raise StreamrError(f"Expected streamMessage to not be {checks.js_text(value)}.")
    if type(value) is str:  # the libraries read the text of an array as well
        return parse_message(value, jsontext.MAX_VALUES)
    return decode_message(value, element_text(frame, index, wire))


def element_text(frame: list[Any], index: int, wire: bytes) -> bytes | None:
    """The text of one element of *frame*; None unless everything around it is written without spaces.

    The texts around it are rebuilt: if *wire* begins and ends with them, the rest is the element. Both ends are
    whole JSON values, and *wire* is JSON, so neither can begin or end inside a string.
    """
    head = jsontext.dumps(frame[:index])[:-1] + b","
    tail = jsontext.dumps(frame[index + 1 :])
    tail = tail[1:] if tail == b"[]" else b"," + tail[1:]
    return wire[len(head) : -len(tail)] if wire.startswith(head) and wire.endswith(tail) else None


def _normalise_resend(values: dict[str, Any]) -> None:
    """Turn S1's resend options, of which exactly one must be set, into the fields of a `ResendRequest`."""
    everything, last = values.pop("resend_all"), values.pop("number_last")
    start, end = values.pop("resend_from"), values.pop("resend_to")
    if [everything, last is not None, start is not None].count(True) != 1:
        raise StreamrError("Invalid resend options!")
    values["number_last"] = last
    if last is None:
        values["from_ref"] = MessageRef(0 if start is None else start)
        values["to_ref"] = None if end is None else MessageRef(end)


def _check_order(start: MessageRef | None, end: MessageRef | None) -> None:
    if start and end and start.timestamp > end.timestamp:
        raise StreamrError(
            f"fromMsgRef.timestamp ({start.timestamp})"
            f"must be less than or equal to toMsgRef.timestamp ({end.timestamp})"
        )


def _partition(name: str, value: Any) -> int:
    # Optional in every specification, although the libraries since 5.0 refuse a frame without it.
    return checks.optional_integer(name, value) or 0


def _subscription_id(_name: str, value: Any) -> str | int:
    # The libraries send a counter as a string; S1's example of a UnicastMessage has a number. Both are preserved.
    return value if type(value) is int and abs(value) <= checks.MAX_INTEGER else checks.text("requestId", value)


def _flag(name: str, value: Any) -> bool:
    if value is None or value is UNDEFINED or type(value) is bool:
        return value is True
    raise StreamrError(f"Expected {name} to be a boolean but was {checks.js_text(value)}.")


def _request_id(frame: Any) -> str:
    """The requestId of a frame that is otherwise refused, or an empty string."""
    if not isinstance(frame, list) or frame[:1] not in ([1], [2]):
        return ""
    index = 2
    if frame[0] == 1:
        kind = _TYPES.get(frame[1]) if len(frame) > 1 and type(frame[1]) in (int, str) else None
        fields = CONTROL[1].get(kind, ()) if kind is not None else ()
        if "subId" not in fields:
            return ""
        index += fields.index("subId")
    return checks.echoed_id(frame[index]) if len(frame) > index else ""


def _leading_id(data: bytes | str) -> str:
    """The requestId at the start of a text that is not JSON, or an empty string."""
    start = data[:1024] if isinstance(data, str) else data[:1024].decode("utf-8", "replace")
    found = _LEADING_ID.match(start)
    try:
        return str(jsontext.loads(found[1])) if found else ""
    except ValueError:
        return ""


# The attribute of a frame that each field of the tables becomes, and the check of its value.
# fmt: off
FIELDS: Final[dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "requestId":       ("request_id", checks.text),
    "subId":           ("request_id", _subscription_id),
    "streamMessage":   ("message", lambda _name, value: value),
    "streamId":        ("stream_id", checks.nonempty),
    "streamPartition": ("stream_partition", _partition),
    "sessionToken":    ("session_token", checks.optional_text),
    "apiKey":          ("api_key", checks.optional_text),
    "numberLast":      ("number_last", checks.integer),
    "fromMsgRef":      ("from_ref", decode_ref),
    "toMsgRef":        ("to_ref", decode_ref),
    "publisherId":     ("publisher_id", checks.optional_text),
    "msgChainId":      ("msg_chain_id", checks.optional_text),
    "errorMessage":    ("error_message", checks.text),
    "errorCode":       ("error_code", checks.text),
    "resendAll":       ("resend_all", _flag),
    "resendLast":      ("number_last", checks.optional_integer),
    "resendFrom":      ("resend_from", checks.optional_integer),
    "resendTo":        ("resend_to", checks.optional_integer),
}
# fmt: on
