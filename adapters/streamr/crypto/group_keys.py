"""Group keys, and the messages by which they are asked for, given, refused and replaced.

The contents of message types 28 to 32 in every form there is: the arrays of S0 and of the libraries since 5.0, S2's
(whose responses and resets are RSA as a whole), and the objects of message version 31, where keys have no ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from adapters.streamr.wire import checks
from adapters.streamr.wire import message as kinds
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import StreamMessage
from gateway.core import jsontext

from .ciphers import KEY_BYTES

MAX_IDS = 64  # keys that one message asks for or gives
MAX_ID = 256  # characters of a key's id or a request's; genuine ones have some 30


class GroupKey(NamedTuple):
    """A key (32 bytes) for the contents of a stream, with the id that its publisher gave it."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"GroupKey({self.id!r})"  # the secret is for no log


class SentGroupKey(NamedTuple):
    """A group key in transit: *hex_text* is encrypted with RSA for one reader, or with AES under the previous key.

    It is the key in the clear if all of the content that it came in was encrypted.
    """

    id: str
    hex_text: str


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A subscriber asks the publisher for keys (28); without *ids* for the one in use, as version 31 has it.

    *has_key_ids* is false for the form of version 31, where keys have no ids.
    """

    request_id: str
    stream_id: str
    public_key: str
    ids: tuple[str, ...] = ()
    has_key_ids: bool = True

    def content(self) -> str:
        """The content of the message that says this, in the form of version 31 if keys have no ids there."""
        if not self.has_key_ids:
            return _text({"requestId": self.request_id, "streamId": self.stream_id, "publicKey": self.public_key})
        return _text([self.request_id, self.stream_id, self.public_key, list(self.ids)])


@dataclass(frozen=True, slots=True)
class KeyResponse:
    """The publisher's answer (29). *fully_encrypted*: the keys are in the clear, since all of the content was RSA."""

    request_id: str
    stream_id: str
    keys: tuple[SentGroupKey, ...]
    fully_encrypted: bool = False

    def content(self) -> str:
        """The content in the form of S0 and the libraries."""
        return _text([self.request_id, self.stream_id, [list(key) for key in self.keys]])

    def content_without_ids(self, start: int) -> str:
        """The content in the form of version 31, where a key is known by the time (ms) of its first use."""
        keys = [{"groupKey": key.hex_text, "start": start} for key in self.keys]
        return _text({"requestId": self.request_id, "streamId": self.stream_id, "keys": keys})


@dataclass(frozen=True, slots=True)
class KeyAnnounce:
    """Keys that were not requested (30): S0's announce, S2's reset, and that of version 31."""

    stream_id: str
    keys: tuple[SentGroupKey, ...]
    fully_encrypted: bool = False


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """The publisher refuses a request for keys (31)."""

    request_id: str
    stream_id: str
    code: str
    text: str
    ids: tuple[str, ...] = ()

    def content(self) -> str:
        """The content in the form of S0 and the libraries."""
        return _text([self.request_id, self.stream_id, self.code, self.text, list(self.ids)])


KeyMessage = KeyRequest | KeyResponse | KeyAnnounce | KeyRefusal

# fmt: off
# The elements of the arrays, and the names of the same in the objects of version 31.
FIELDS: Final = {
    kinds.GROUP_KEY_REQUEST:        ("requestId", "streamId", "publicKey", "groupKeyIds"),
    kinds.GROUP_KEY_RESPONSE:       ("requestId", "streamId", "keys"),
    kinds.GROUP_KEY_ANNOUNCE:       ("streamId", "keys"),
    kinds.GROUP_KEY_ERROR_RESPONSE: ("requestId", "streamId", "code", "message", "groupKeyIds"),
}
# fmt: on


def parse_key_message(message: StreamMessage, decrypted: str | None = None) -> KeyMessage:
    """Parse the group-key *message*; raises `StreamrError` if it is malformed.

    *decrypted* is the content as it is after all of it was decrypted.
    """
    value = _json(message.content if decrypted is None else decrypted)
    values = _fields(message.message_type, value)
    get = values.get
    match message.message_type:
        case kinds.GROUP_KEY_REQUEST:
            ids = _ids(get("groupKeyIds"))
            has_key_ids = type(value) is list
            request_id = get("requestId") if has_key_ids else get("requestId") or ""
            return KeyRequest(_id(request_id), _stream(values), _key(get("publicKey")), ids, has_key_ids)
        case kinds.GROUP_KEY_RESPONSE:
            return KeyResponse(_id(get("requestId")), _stream(values), _keys(get("keys")), decrypted is not None)
        case kinds.GROUP_KEY_ANNOUNCE:
            return KeyAnnounce(_stream(values), _keys(get("keys")), decrypted is not None)
        case kinds.GROUP_KEY_ERROR_RESPONSE:
            code, text = _some_text(get("code")), _some_text(get("message"))
            return KeyRefusal(_id(get("requestId") or ""), _stream(values), code, text, _ids(get("groupKeyIds")))
    raise StreamrError(f"{message.message_type} is not a message of the key exchange")


def parse_new_key(text: str) -> SentGroupKey:
    """The `[id, hex_text]` of a newGroupKey, or of the content of a GroupKeyRotate."""
    (key,) = _keys([_json(text)])
    return key


def decode_group_key(hex_text: str) -> bytes:
    """The 32 bytes of a group key in the clear; `ValueError` if it is malformed."""
    return checked_key(bytes.fromhex(hex_text))


def checked_key(secret: bytes) -> bytes:
    """*secret* itself; `ValueError` unless it has the length of a group key."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a group key has {KEY_BYTES} bytes")
    return secret


def _fields(kind: int, value: Any) -> dict[str, Any]:
    names = FIELDS.get(kind, ())
    if type(value) is dict:
        values = {name: value.get(name) for name in names}
        if kind == kinds.GROUP_KEY_ANNOUNCE:  # one key, not a list of them
            values["keys"] = [value]
        return values
    row = checks.array("content", value)
    if kind == kinds.GROUP_KEY_ANNOUNCE and len(row) > 2:  # S2's reset: [streamId, groupKeyId, groupKey]
        row = [row[0], row[1:3]]
    return dict(zip(names, row, strict=False))


def _keys(value: Any) -> tuple[SentGroupKey, ...]:
    """Pairs of id and hex text, one pair that is in no list (as S0 and S2 write it), or version 31's objects."""
    rows = checks.array("groupKeys", value)
    if rows and type(rows[0]) is str:
        rows = [rows]
    if len(rows) > MAX_IDS:
        raise StreamrError(f"more than {MAX_IDS} group keys")
    return tuple(map(_sent_key, rows))


def _sent_key(value: Any) -> SentGroupKey:
    if type(value) is dict:
        start = checks.optional_integer("start", value.get("start"))
        return SentGroupKey(f"start:{start or 0}", checks.nonempty("groupKey", value.get("groupKey")))
    key_id, hex_text = checks.padded(checks.array("groupKey", value), 2)
    return SentGroupKey(_id(checks.nonempty("groupKeyId", key_id)), checks.nonempty("encryptedGroupKeyHex", hex_text))


def _ids(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    ids = checks.array("groupKeyIds", value)
    if len(ids) > MAX_IDS:
        raise StreamrError(f"more than {MAX_IDS} group keys")
    return tuple(_id(checks.nonempty("groupKeyId", id)) for id in ids)


def _id(value: Any) -> str:
    text = checks.text("requestId", value)
    if len(text) > MAX_ID:
        raise StreamrError(f"an id of more than {MAX_ID} characters")
    return text


def _stream(values: dict[str, Any]) -> str:
    return checks.nonempty("streamId", values.get("streamId"))


def _key(value: Any) -> str:
    return checks.nonempty("rsaPublicKey", value)


def _some_text(value: Any) -> str:
    return value if type(value) is str else ""


def _json(text: str) -> Any:
    try:
        return jsontext.loads(text, max_values=jsontext.MAX_VALUES)
    except ValueError as error:
        raise StreamrError(f"Invalid JSON in a message of the key exchange: {error}") from None


def _text(value: Any) -> str:
    return jsontext.dumps(value).decode()
