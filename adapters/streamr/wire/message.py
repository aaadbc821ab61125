"""Stream messages: what publishers sign and subscribers read, in versions 30, 31 and 32.

`decode_message` reads every form in the wild, told apart by shape; `StreamMessage.encode` writes the form
of the libraries in the version a peer asked for. A signature covers strings (S0, signatureType), so
content, keys and ids are never altered: only their places in the array change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from gateway.core import jsontext

from . import checks
from .checks import MAX_ID, MAX_INTEGER, MAX_KEY, MAX_NAME, UNDEFINED
from .errors import REQUEST_FAILED, StreamrError
from .message_layouts import FLAT_30, LAYOUTS, layout_of, nest_flat_fields

LATEST = 32

# messageType. S0 names 27 to 31; 32 is GroupKeyRotate of S2.
MESSAGE, GROUP_KEY_REQUEST, GROUP_KEY_RESPONSE, GROUP_KEY_ANNOUNCE, GROUP_KEY_ERROR_RESPONSE = range(27, 32)
GROUP_KEY_ROTATE = 32
# encryptionType. 3, a new key before the content, is known to message version 31 only.
NONE, RSA, AES, NEW_KEY_AND_AES = range(4)
# signatureType. ETH_LEGACY is read and never written.
UNSIGNED, ETH_LEGACY, ETH = range(3)

_FLAT = re.compile(rb"\s*\[[^,\[\"]*,\s*\"")  # the version may be written 30.0
# The fields of version 32, and what the libraries take for one that is missing.
_DEFAULTS: Final = dict.fromkeys(LAYOUTS[LATEST]) | {
    "msgId": UNDEFINED,
    "messageType": MESSAGE,
    "contentType": 0,
    "encryptionType": NONE,
    "content": UNDEFINED,
    "signatureType": UNSIGNED,
}
_MESSAGE_TYPES: Final = frozenset(range(MESSAGE, GROUP_KEY_ROTATE + 1))
_CONTENT_TYPES: Final = frozenset({0})
_ENCRYPTION_TYPES: Final = {
    30: frozenset({NONE}),
    31: frozenset({NONE, RSA, AES, NEW_KEY_AND_AES}),
    32: frozenset({NONE, RSA, AES}),
}
_SIGNATURE_TYPES: Final = frozenset({UNSIGNED, ETH_LEGACY, ETH})


class MessageRef(NamedTuple):
    """A place in a message chain (S0, MessageRef); genuine clients leave the sequence number out."""

    timestamp: int
    sequence_number: int | None = None


class MessageID(NamedTuple):
    """What makes a message unique (S0, MessageID)."""

    stream_id: str
    stream_partition: int
    timestamp: int
    sequence_number: int = 0
    publisher_id: str = ""
    msg_chain_id: str = ""

    @property
    def position(self) -> tuple[int, int]:
        """The timestamp (ms) and the sequence number: the order in which a publisher's messages follow each other."""
        return self.timestamp, self.sequence_number


@dataclass(slots=True)  # not frozen: one is made for each publish, and frozen ones take four times as long
class StreamMessage:
    """One stream message, in whichever version it came (S0, StreamMessage). Nothing but its caches is ever modified.

    `version` and `wire` are the version and the text of the array it was received as, `verbatim` says that
    this text is the libraries' form, not one of the specifications' only. `ttl_seconds` is S1's, never 0. Two are
    caches: `digests` of what may have been signed (`signing`), and `verified`, a genuine signature (`batch`).
    """

    id: MessageID
    content: str
    prev_ref: MessageRef | None = None
    message_type: int = MESSAGE
    encryption_type: int = NONE
    group_key_id: str | None = None
    new_group_key: str | None = None
    signature_type: int = UNSIGNED
    signature: str | None = None
    ttl_seconds: int | None = None
    version: int = field(default=LATEST, compare=False)
    wire: bytes | None = field(default=None, compare=False, repr=False)
    verbatim: bool = field(default=False, compare=False, repr=False)
    digests: dict[str, bytes] | None = field(default=None, init=False, compare=False, repr=False)
    verified: bool = field(default=False, init=False, compare=False, repr=False)

    def encode(self, version: int) -> bytes:
        """The JSON array of this message in *version*: 30 (nested), 31 or 32."""
        if version == self.version and self.verbatim and self.wire is not None:
            return self.wire
        return jsontext.dumps([self._element(name, version) for name in LAYOUTS[version]])

    def is_lossless_in(self, version: int) -> bool:
        """Whether readers of *version* get all of this message and can check its signature.

        The signature covers newGroupKey, which older versions cannot carry; encryption 3 is known to
        version 31 alone, GroupKeyRotate to version 32. Version 30 cannot express encryption: the libraries
        write such a message all the same, but their readers of version 30 throw on its content, so it counts as lost.
        In the key exchange, RSA encrypts only keys within a content that can be read.
        """
        if version == 30 and (
            self.encryption_type == AES or (self.encryption_type, self.message_type) == (RSA, MESSAGE)
        ):
            return False
        if self.encryption_type == NEW_KEY_AND_AES:
            return version == 31
        return version == LATEST or (self.new_group_key is None and self.message_type != GROUP_KEY_ROTATE)

    def parsed_content(self) -> Any:
        """The content as a JSON value; encrypted content is the string it is.

        Raises a `StreamrError` (REQUEST_FAILED) when the content claims to be JSON and is not.
        """
        if self.message_type == MESSAGE and self.encryption_type != NONE:
            return self.content
        try:
            return jsontext.loads(self.content)
        except ValueError as error:
            raise self._no_json(error) from None

    def check_content(self) -> None:
        """Raise a `StreamrError` where `parsed_content` would for unencrypted content, without building a value."""
        try:
            jsontext.check(self.content.encode(errors=jsontext.SURROGATE_ERRORS))
        except ValueError as error:
            raise self._no_json(error) from None

    def json_content(self) -> bytes:
        """The content as one JSON value on one line, as the bus has it; encrypted content is wrapped."""
        if self.encryption_type == NONE:
            # Half a surrogate pair can only stand inside of a JSON string, where it may as well be an escape.
            return jsontext.one_line(self.content.encode(errors="backslashreplace"))
        return jsontext.dumps({"encrypted": {"groupKeyId": self.group_key_id, "content": self.content}})

    def _no_json(self, error: ValueError) -> StreamrError:
        quoted = checks.js_text(self.content)
        reason = f"Invalid JSON in stream {self.id.stream_id}: {quoted}. Error while parsing was: {error}"
        return StreamrError(reason, code=REQUEST_FAILED)

    def _element(self, name: str, version: int) -> Any:
        match name:
            case "version":
                return version
            case "msgId":
                return list(self.id)
            case "prevMsgRef":
                return self.prev_ref and list(self.prev_ref)
            case "contentType":
                return 0
            case _:
                return getattr(self, _ATTRIBUTES[name])


_ATTRIBUTES: Final = {
    "messageType": "message_type",
    "encryptionType": "encryption_type",
    "groupKeyId": "group_key_id",
    "content": "content",
    "newGroupKey": "new_group_key",
    "signatureType": "signature_type",
    "signature": "signature",
}


def parse_message(data: bytes | str, max_values: int | None = None) -> StreamMessage:
    """Read the text of one message array; anything else raises a `StreamrError`, also more than *max_values*."""
    try:
        wire = data if isinstance(data, bytes) else data.encode()
        if (message := decode_message_fast(wire)) is not None:
            return message
        value = jsontext.loads(wire, max_values=max_values)
    except ValueError as error:
        raise StreamrError(f"Invalid JSON: {error}") from None
    return _decode_general(value, wire)


def has_expired(wire: bytes, now: int) -> bool:
    """Whether a message has outlived its ttl (S1); *wire* is the text of its array, *now* is in ms."""
    if not _FLAT.match(wire):
        return False
    message = parse_message(wire)
    return message.ttl_seconds is not None and message.id.timestamp + 1000 * message.ttl_seconds < now


def decode_message(value: Any, wire: bytes | None = None) -> StreamMessage:
    """Read a message array that was parsed from the text *wire*; anything else raises a `StreamrError`."""
    return (None if wire is None else decode_message_fast(wire)) or _decode_general(value, wire)


_Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
_Name = Annotated[str, Meta(max_length=MAX_NAME)]


class _Row(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The array of a message of version 32 as the libraries write it; every value is within its limits."""

    version: Literal[32]
    id: tuple[
        Annotated[str, Meta(min_length=1, max_length=MAX_NAME)],
        _Natural,
        _Natural,
        _Natural,
        _Name,
        Annotated[str, Meta(max_length=MAX_ID)],
    ]
    prev_ref: tuple[_Natural, _Natural] | None
    message_type: Annotated[int, Meta(ge=MESSAGE, le=GROUP_KEY_ROTATE)]
    content_type: Literal[0]
    encryption_type: Annotated[int, Meta(ge=NONE, le=AES)]
    group_key_id: Annotated[str, Meta(max_length=MAX_KEY)] | None
    content: Annotated[str, Meta(min_length=1)]
    new_group_key: None
    signature_type: Annotated[int, Meta(ge=UNSIGNED, le=ETH)]
    signature: _Name | None


_ROW: Final = msgspec.json.Decoder(_Row)


def decode_message_fast(wire: bytes) -> StreamMessage | None:
    """Read a valid message of version 32 in the form that the libraries write; None for anything else.

    For every message that it reads, `_decode_general` returns the same.
    """
    try:
        row = _ROW.decode(wire)
    except ValueError:  # of msgspec, or of a text that is not UTF-8
        return None
    # As `MessageID._make` does, which would be a call for each.
    message_id, ref = tuple.__new__(MessageID, row.id), row.prev_ref
    if ref is not None and ref >= row.id[2:4]:
        return None
    prev_ref = None if ref is None else MessageRef._make(ref)
    kind, encryption, signed = row.message_type, row.encryption_type, row.signature_type
    key_id, signature = row.group_key_id, row.signature
    # By position: keywords would take twice as long.
    return StreamMessage(
        message_id, row.content, prev_ref, kind, encryption, key_id, None, signed, signature, None, LATEST, wire, True
    )


def _decode_general(value: Any, wire: bytes | None) -> StreamMessage:
    row = value if isinstance(value, list) else []
    layout = layout_of(row)
    fields = row if layout is LAYOUTS[LATEST] and len(row) == len(layout) else _latest(layout, row)
    version, given_id, given_ref, kind, content_type, encryption, key_id, content, new_key, signed, signature = fields
    message_id = _message_id(given_id, version)
    prev_ref = _prev_ref(given_ref, message_id, version)
    checks.code("content type", content_type, _CONTENT_TYPES)
    return StreamMessage(
        id=message_id,
        prev_ref=prev_ref,
        message_type=checks.code("message type", kind, _MESSAGE_TYPES),
        encryption_type=checks.code("encryption type", encryption, _ENCRYPTION_TYPES[version]),
        group_key_id=checks.optional_text("groupKeyId", key_id),
        new_group_key=_new_group_key(new_key),
        signature_type=checks.code("signature type", signed, _SIGNATURE_TYPES),
        signature=checks.optional_text("signature", signature),
        content=_content(content),
        ttl_seconds=_ttl(row[8]) if layout is FLAT_30 and len(row) > 8 else None,
        version=int(version),
        wire=jsontext.dumps(row) if wire is None else wire,
        # The array can be shown as it came if every reader of its version understands it.
        verbatim=layout is LAYOUTS[version]
        and len(row) == len(layout)
        and type(content) is str
        and given_id == list(message_id)
        and (given_ref is None) == (prev_ref is None),
    )


def _latest(layout: tuple[str, ...], row: list[Any]) -> list[Any]:
    """The elements of *row* in the order of version 32; a missing element has its default."""
    fields = dict(zip(layout, row, strict=False))
    if layout is FLAT_30:
        nest_flat_fields(fields)
    return [fields.get(name, default) for name, default in _DEFAULTS.items()]


def _ttl(value: Any) -> int | None:
    """The lifetime of a message of S1 in seconds; 0, which the broker of its time wrote for no ttl, becomes None."""
    return checks.optional_integer("ttl", value) or None


def _message_id(value: Any, version: int) -> MessageID:
    given = checks.padded(checks.array("msgId", value), 6)
    stream, partition, timestamp, sequence, publisher, chain = given
    if version == 30:  # its sequenceNumber, publisherId and msgChainId may be null or missing
        sequence = 0 if sequence is None or sequence is UNDEFINED else sequence
        publisher = checks.optional_text("publisherId", publisher) or ""
        chain = checks.optional_text("msgChainId", chain) or ""
    return MessageID(
        checks.nonempty("streamId", stream),
        checks.integer("streamPartition", partition),
        checks.integer("timestamp", timestamp),
        checks.integer("sequenceNumber", sequence),
        checks.text("publisherId", publisher),
        checks.text("msgChainId", chain),
    )


def decode_ref(name: str, value: Any) -> MessageRef:
    """Read the array form of a MessageRef; the sequence number may be null or missing."""
    timestamp, sequence = checks.padded(checks.array(name, value), 2)
    return MessageRef(checks.integer("timestamp", timestamp), checks.optional_integer("sequenceNumber", sequence))


def _prev_ref(value: Any, message_id: MessageID, version: int) -> MessageRef | None:
    if value is None or (value == [None, None] and version < 32):  # the latter from clients 2.x
        return None
    prev = decode_ref("prevMsgRef", value)
    current, previous = message_id.position, (prev.timestamp, prev.sequence_number or 0)
    if previous < current:
        return prev
    fault = "cannot be identical to" if previous == current else "must come before"
    raise StreamrError(
        f"prevMessageRef {fault} current. Current: {checks.js_text(list(current))}"
        f" Previous: {checks.js_text(list(prev))}"
    )


def _content(value: Any) -> str:
    # S2's examples write arrays where the libraries write their text.
    if type(value) in (list, dict):
        value = jsontext.dumps(value).decode()
    return checks.nonempty("content", value)


def _new_group_key(value: Any) -> str | None:
    """The text of `[groupKeyId, encryptedGroupKeyHex]`, as received: the signature covers it."""
    serialized = checks.optional_text("newGroupKey", value)
    if not serialized:
        return None
    try:
        pair = jsontext.loads(serialized)
    except ValueError as error:
        raise StreamrError(f"Invalid JSON in newGroupKey: {error}") from None
    key_id, key = checks.padded(checks.array("newGroupKey", pair), 2)
    checks.text("groupKeyId", key_id)
    checks.text("encryptedGroupKeyHex", key)
    return serialized
