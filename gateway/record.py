"""One record of the log: a line of JSON that carries its own checksum.

A record is a message or a fact (something that must outlive retention: who has which number, what a channel is
called, what a form came out as). The checksum is CRC-32, in hex, of the bytes before the last `,"crc"`.
See docs/log.md.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any

import orjson
from zlib_ng.zlib_ng import crc32

from .jsontext import MAX_DEPTH, dumps, loads, one_line
from .message import Message, Peer
from .sound import flaw

CRC = b',"crc":"'
_TAIL = len(CRC) + len('12345678"}')
_DEPTH = MAX_DEPTH + 1  # the content may be as deep as any door lets it be; the record is one level around it

# The kinds of facts, and the fields that a fact of the kind must have.
FACTS: dict[str, tuple[str, ...]] = {
    "start": ("gateway", "version"),
    "peer": (),  # either a durable peer or a block of numbers
    "channel": ("channel", "addresses", "open"),
    "entity": ("protocol", "native", "wire"),
    "form": ("protocol", "of", "native"),
    "counts": ("minute", "flows"),
}


@dataclass(slots=True, eq=False)
class Fact:
    """Something the log remembers that is no message. *fields* are the record's own, as JSON values."""

    kind: str
    fields: dict[str, Any]
    seq: int = 0
    time: int = 0

    @property
    def protocol(self) -> str:
        """The protocol that the fact belongs to, empty for the gateway's own."""
        return str(self.fields.get("protocol", ""))


Entry = Message | Fact


class BadRecord(ValueError):
    """A line that is no record, or not the one that was written."""


def encode(entry: Entry) -> bytes:
    """The line of *entry*, newline included."""
    body = _message(entry) if isinstance(entry, Message) else _fact(entry)
    return body + b',"crc":"%08x"}\n' % crc32(body)


def decode(line: bytes) -> Entry:
    """Read a line back; `BadRecord` says why it cannot be trusted."""
    record, body = fields(line)
    if (wrong := flaw(record)) is not None:
        raise BadRecord(f"not a record: {wrong}")
    try:
        return _entry(record, body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"not a record: {error}") from None


def fields(line: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of *line* as JSON values, and the bytes of it that its checksum covers; `BadRecord` as by `decode`."""
    body = checked(line)
    try:
        record = loads(body + b"}", _DEPTH)
        kind = record["kind"]
        if type(record["seq"]) is not int or type(record["time"]) is not int:
            raise BadRecord("a sequence and a time are whole numbers")
        if kind != "message":
            missing = [name for name in FACTS.get(kind, ()) if name not in record]
            if missing or kind not in FACTS:
                raise BadRecord(f"a fact of kind {kind!r} without {missing}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"not a record: {error}") from None
    return record, body


def checked(line: bytes) -> bytes:
    """The bytes of *line* that its checksum covers, once they have been found to agree with it."""
    line = line.removesuffix(b"\n")
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not tail.startswith(CRC):
        raise BadRecord("torn: no checksum at its end")
    if tail != b'%b%08x"}' % (CRC, crc32(body)):
        raise BadRecord("the checksum does not agree")
    return body


def binary(wire: bytes) -> bytes:
    """How bytes that are no text stand in a record: unpadded base64url."""
    return urlsafe_b64encode(wire).rstrip(b"=")


def unbinary(text: str | bytes) -> bytes:
    """The bytes that `binary` wrote."""
    raw = text.encode() if isinstance(text, str) else text
    return urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))


def _message(m: Message) -> bytes:
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
    # as `one_line` asks, which would be a call for each
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
    except TypeError:  # a name has half a character in it
        return _slowly(record, content)


def _slowly(record: dict[str, Any], content: bytes) -> bytes:
    """The record without its last brace, field by field, where orjson refuses a name."""
    record["content"] = None
    fields = {name: dumps(value) for name, value in record.items()} | {"content": content}
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items())


def _fact(fact: Fact) -> bytes:
    head = {"seq": fact.seq, "time": fact.time, "kind": fact.kind}
    return dumps(head | fact.fields)[:-1]


def _entry(record: dict[str, Any], body: bytes) -> Entry:
    kind, seq, time = record.pop("kind"), record.pop("seq"), record.pop("time")
    if kind != "message":
        return Fact(kind, record, seq, time)
    wire, native = record.get("wire"), record.get("native")
    return Message(
        channel=record["channel"],
        sender=Peer(record["peer"], record.get("sender_protocol", record["protocol"]), record.get("sender")),
        protocol=record["protocol"],
        content=content_of(record, body),
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


_CONTENT = b',"content":'


def content_of(record: dict[str, Any], body: bytes) -> bytes:
    """The content's own text, cut out of the *body* of *record* so that no digit of it changes."""
    start, end = body.index(_CONTENT) + len(_CONTENT), len(body)
    for name in reversed(record):
        if name == "content":
            break
        text = b',"%b":%b' % (name.encode(), dumps(record[name]))
        if not body.endswith(text, start, end):
            return _content_slowly(body, start)
        end -= len(text)
    return body[start:end]


def _content_slowly(body: bytes, start: int) -> bytes:
    """The same where something behind the content, such as a number, did not come back as it was written."""
    text = body[start:].decode()
    _, end = JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    return text[: text.index(',"', end)].encode()
