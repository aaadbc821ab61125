"""One record of the log: a line of JSON that carries its own checksum.

A record is a message or a fact: something that must outlive retention, such as a peer's number, a channel's addresses
or the id of a form. The checksum is CRC-32, in hex, of the bytes before the last `,"crc"`. See docs/log.md.

Laws of this file. Reading a record does not parse a message's content, whose text is enough: parsing a MiB that was
made for it would take half a second. The content is cut out as it stands, so that no digit of it changes.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import orjson
from msgspec import Meta
from zlib_ng.zlib_ng import crc32

from gateway.core.errors import InvalidData
from gateway.core.jsontext import MAX_DEPTH, check_depth, dumps, loads, one_line
from gateway.core.message import Message, Peer

from .record_schema import MAX_NUMBER, MAX_SEQ, MAX_TIME, is_channel_name, schema_error

CRC = b',"crc":"'
_END: Final = b',"crc":"%08x"}\n'  # of a line
_END_SIZE: Final = len(_END % 0)
_MAX_DEPTH = MAX_DEPTH + 1  # the content may have `MAX_DEPTH` levels, and the record is one level around it
_CONTENT = b',"content":'  # no name or text before it can contain this: a quote in them is escaped
_ABSENT: Any = None  # stands for a missing member; no member may be null
_WHITESPACE: Final = re.compile(rb"[ \t\r\n]*")


@dataclass(slots=True, eq=False)
class Fact:
    """A record that is not a message. *fields* are its own members, as JSON values."""

    kind: str
    fields: dict[str, Any]
    seq: int = 0
    time: int = 0

    @property
    def protocol(self) -> str:
        """The protocol that the fact belongs to; empty for the gateway's own facts."""
        return str(self.fields.get("protocol", ""))


Entry = Message | Fact


class _MessageRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The record of a message, as the tables of `gateway.storage.record_schema` want it; the content is passed over."""

    kind: Literal["message"]
    seq: Annotated[int, Meta(ge=1, le=MAX_SEQ)]
    time: Annotated[int, Meta(ge=0, le=MAX_TIME)]
    channel: str
    id: str
    protocol: str
    peer: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    content: msgspec.Raw
    sender: str = _ABSENT
    sender_protocol: str = _ABSENT
    timestamp: Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] = _ABSENT
    parent: str = _ABSENT
    native: dict[str, Any] = _ABSENT
    ids: tuple[str, ...] = ()
    key: str = _ABSENT
    wire: str = _ABSENT
    refs: dict[str, Any] = _ABSENT
    undelivered: tuple[str, ...] = ()


class _RecordKind(msgspec.Struct):
    """The members of a record that are needed to cut its content out."""

    kind: str
    content: msgspec.Raw = msgspec.Raw()


_MESSAGE_DECODER: Final = msgspec.json.Decoder(_MessageRecord)
_KIND_DECODER: Final = msgspec.json.Decoder(_RecordKind)
_DECODE_ERRORS: Final = (msgspec.DecodeError, ValueError, RecursionError)


class BadRecord(InvalidData):
    """A line is not a valid record, or not the one that was written."""


def encode(entry: Entry) -> bytes:
    """The line of *entry*, newline included."""
    body = _encode_message(entry) if isinstance(entry, Message) else _encode_fact(entry)
    return body + _END % crc32(body)


def decode(line: bytes) -> Entry:
    """Decode a line; `BadRecord` says why it is not valid. Use `decode_untrusted` for lines from elsewhere."""
    return decode_body(verify_checksum(line))


def decode_body(body: bytes) -> Entry:
    """Decode a line by what `verify_checksum` returned for it; raises `BadRecord` as `decode` does.

    msgspec reads messages first, in half the CPU time (5.5 us instead of 11.6); a fact takes 13 % more for it. A
    property test compares it with the general reader.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec does not check the text that it skips
        fields = _MESSAGE_DECODER.decode(body + b"}")
        if is_channel_name(fields.channel):
            return _message_of(fields, body)
    except _DECODE_ERRORS:
        pass  # a fact, or JSON that msgspec does not accept, or an invalid record
    try:
        return _entry_of(_checked_fields(body))
    except BadRecord:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"not a record: {error}") from None


def decode_untrusted(line: bytes) -> Entry:
    """Decode a line that somebody else may have written: its JSON may not be nested deeper than a peer's."""
    return decode_untrusted_body(verify_checksum(line))


def decode_untrusted_body(body: bytes) -> Entry:
    """Do the same by what `verify_checksum` returned for the line."""
    entry = decode_body(body)
    try:
        check_depth(body, _MAX_DEPTH)  # of what has just been read as JSON
    except ValueError as error:
        raise BadRecord(f"not a record: {error}") from None
    return entry


def decode_fields(line: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of *line* as JSON values, and the bytes that its checksum covers; raises `BadRecord` as `decode` does.

    The content of a message is its text, as bytes, and not a value.
    """
    body = verify_checksum(line)
    return _checked_fields(body), body


def _checked_fields(body: bytes) -> dict[str, Any]:
    try:
        record = _parse(body)
        wrong = schema_error(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRecord(f"not a record: {error}") from None
    if wrong is not None:
        raise BadRecord(f"not a record: {wrong}")
    return record


def _parse(body: bytes) -> dict[str, Any]:
    """The members of the record; the content of a message is its text, as bytes."""
    body.decode()
    plain = body.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0")  # msgspec refuses lone surrogates
    found = _KIND_DECODER.decode(plain + b"}")
    if found.kind != "message" or not bytes(found.content):
        record: dict[str, Any] = loads(body + b"}", _MAX_DEPTH)
        return record
    start, end = _content_span(plain, bytes(found.content))
    record = loads(body[:start] + b"0" + body[end:] + b"}", _MAX_DEPTH)
    record["content"] = body[start:end]
    return record


def _content_span(body: bytes, content: bytes) -> tuple[int, int]:
    """The start and end of *content* in *body*, with the white space around it, which a signature may cover."""
    start = body.index(_CONTENT) + len(_CONTENT)
    end = start + len(content)
    if body.startswith(content, start) and body[end : end + 1] in (b"", b","):
        return start, end  # nearly always
    begin = _WHITESPACE.match(body, start).end()  # type: ignore[union-attr]  # it always matches
    if not body.startswith(content, begin):
        raise BadRecord("its content is not where it belongs")
    return start, _WHITESPACE.match(body, begin + len(content)).end()  # type: ignore[union-attr]


def verify_checksum(line: bytes) -> bytes:
    """Verify the checksum of *line* and return the bytes that it covers; raises `BadRecord` if it does not agree."""
    if not line.endswith(b"\n"):
        line += b"\n"
    body, end = line[:-_END_SIZE], line[-_END_SIZE:]
    if end == _END % crc32(body):
        return body
    raise BadRecord("the checksum does not agree" if end.startswith(CRC) else "torn: no checksum at its end")


def encode_base64url(wire: bytes) -> bytes:
    """Encode binary data for a record, as unpadded base64url."""
    return urlsafe_b64encode(wire).rstrip(b"=")


def decode_base64url(text: str | bytes) -> bytes:
    """Decode what `encode_base64url` wrote."""
    raw = text.encode() if isinstance(text, str) else text
    return urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))


def _encode_message(m: Message) -> bytes:
    record: dict[str, Any] = {
        "seq": m.seq,
        "time": m.time,
        "channel": m.channel,
        "id": m.id,
        "kind": "message",
        "protocol": m.protocol,
        "peer": m.sender.number,
    }
    if m.sender.identity is not None:
        record["sender"] = m.sender.identity
        if m.sender.protocol != m.protocol:
            record["sender_protocol"] = m.sender.protocol
    if m.timestamp != m.time:
        record["timestamp"] = m.timestamp
    # the condition of `one_line`, inlined to save a call for each message
    content = m.content if 10 not in m.content and 13 not in m.content else one_line(m.content)
    record["content"] = orjson.Fragment(content)
    if m.parent is not None:
        record["parent"] = m.parent
    if m.native is not None:
        record["native"] = m.native
    if m.ids:
        named = () if m.native is None else m.native.values()
        if more := [id for id in m.ids if id not in named]:
            record["ids"] = more
    if m.key is not None:
        record["key"] = m.key
    if m.refs:
        record["refs"] = m.refs
    if m.undelivered:
        record["undelivered"] = m.undelivered
    if m.wire is not None:
        record["wire"] = m.wire.decode()
    try:
        return orjson.dumps(record)[:-1]
    except TypeError:  # a text has a lone surrogate, which orjson refuses
        return _encode_by_field(record, content)


def _encode_by_field(record: dict[str, Any], content: bytes) -> bytes:
    """Encode the record, without its last brace, field by field: orjson refused one of them."""
    record["content"] = None
    fields = {name: dumps(value) for name, value in record.items()} | {"content": content}
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())


def _encode_fact(fact: Fact) -> bytes:
    head = {"seq": fact.seq, "time": fact.time, "kind": fact.kind}
    return dumps(head | fact.fields)[:-1]


def _message_of(record: _MessageRecord, body: bytes) -> Message:
    start, end = _content_span(body, bytes(record.content))
    native, time, wire = record.native, record.time, record.wire
    return Message(
        channel=record.channel,
        sender=Peer(record.peer, _default(record.sender_protocol, record.protocol), record.sender),
        protocol=record.protocol,
        content=body[start:end],
        id=record.id,
        seq=record.seq,
        time=time,
        timestamp=_default(record.timestamp, time),
        parent=record.parent,
        ids=(*(id for id in native.values() if isinstance(id, str)), *record.ids) if native else record.ids,
        native=native,
        key=record.key,
        wire=None if wire is None else wire.encode(),
        refs=record.refs or {},
        undelivered=record.undelivered,
    )


def _default(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _entry_of(record: dict[str, Any]) -> Entry:
    kind, seq, time = record.pop("kind"), record.pop("seq"), record.pop("time")
    if kind != "message":
        return Fact(kind, record, seq, time)
    wire, native = record.get("wire"), record.get("native")
    return Message(
        channel=record["channel"],
        sender=Peer(record["peer"], record.get("sender_protocol", record["protocol"]), record.get("sender")),
        protocol=record["protocol"],
        content=record["content"],
        id=record["id"],
        seq=seq,
        time=time,
        timestamp=record.get("timestamp", time),
        parent=record.get("parent"),
        ids=(*(id for id in (native or {}).values() if isinstance(id, str)), *record.get("ids", ())),
        native=native,
        key=record.get("key"),
        wire=wire.encode() if wire is not None else None,
        refs=record.get("refs") or {},
        undelivered=tuple(record.get("undelivered", ())),
    )
