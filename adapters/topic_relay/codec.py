"""Packets of the topic relay (the Koshare Router protocol): bytes to typed values and back.

A packet's own text is never serialised again. The gateway splices its members into that text, and cuts the content out
of it, so that numbers, escapes and spacing reach other peers as they were written. Lengths are in UTF-16 units, as the
reference counts them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from json import JSONDecoder
from math import inf
from typing import Any

import orjson

from gateway.core.bounded_maps import CACHED_CHANNELS
from gateway.core.errors import RequestError
from gateway.core.jsontext import MAX_DEPTH, SHORT_SIZE, dumps, loads, one_line
from gateway.core.shared_ids import is_canonical

MAX_PACKET = 65_000
MAX_TOPIC = 30
MAX_MEMBERS = 256  # of a packet whose members have to be looked at one by one, several times
ID_KEY = "trellisId"  # the member in which gateways send each other the canonical id of a message
RESERVED_KEYS = frozenset({"type", "topic", "src", "dst", "error", ID_KEY})  # all other members are content
WRAPPER_KEY = "json"  # the member that carries content which is no object, or has reserved keys
NO_PEER = -1  # a destination that is a number, but cannot be a peer's


# The values of `type` (specification, "Basic").
ERROR, ECHO, SUBSCRIBE, UNSUBSCRIBE, MESSAGE, INFO, BROADCAST, HELLO = range(8)


@dataclass(slots=True)
class Packet:
    """One packet from a peer.

    `text` is what was received, `fields` its members (perhaps without `type`, `topic` and `dst`). `dst` is the
    destination of a Message: None if it has none, `NO_PEER` if it cannot be a peer's number. A Message or a Broadcast
    has `content`, one JSON value on one line, and may have `parent`, the id of the message that it answers.
    """

    kind: float
    topic: str
    text: bytes
    fields: Mapping[str, Any]
    dst: int | None = None
    content: bytes = b""
    parent: str | None = None

    @property
    def id(self) -> str | None:
        """The canonical id that another gateway gave it; None if it has none."""
        id = self.fields.get(ID_KEY)
        return id if type(id) is str and is_canonical(id) else None


class PacketError(RequestError):
    """A packet that is answered with an error; *code* is the reference's name for it.

    *text* and *fields* are the packet, or an empty object if it cannot be echoed.
    """

    def __init__(self, code: str, text: bytes = b"{}", fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.text = text
        self.fields = fields or {}

    def reply(self) -> bytes:
        """The text of the answer: the packet with its error."""
        return extend(self.text, self.fields, error=self.code)


def utf16_length(text: str) -> int:
    """The length of *text* in UTF-16 units; an unpaired surrogate is one."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def fits(text: bytes) -> bool:
    """Whether the UTF-8 *text* is at most `MAX_PACKET` units long; what is not UTF-8 counts as U+FFFD."""
    if len(text) <= MAX_PACKET:
        return True
    # A unit takes at most three bytes, so the work on a long packet has a bound.
    return len(text) <= 3 * MAX_PACKET and utf16_length(text.decode(errors="replace")) <= MAX_PACKET


def decode(data: bytes) -> Packet:
    """Read one packet, or raise `PacketError`; the checks come in the reference's order."""
    if len(data) > MAX_PACKET and not fits(data):
        raise PacketError("MessageIsTooLong")
    return decode_common(data) or _decode_any(data, MAX_MEMBERS)


def decode_logged(data: bytes) -> Packet:
    """Read a packet that was accepted before, perhaps when packets could have more members; raises `PacketError`."""
    return decode_common(data) or _decode_any(data, MAX_PACKET)


def check_logged(data: bytes) -> None:
    """Raise the `PacketError` of `decode_logged`, if it has one; a packet with a `src` is not cut apart for it."""
    _without_content(data, MAX_PACKET)


# What most programs write: {"type":6,"topic":"t",...}, or {...,"type":6,"topic":"t"} as the reference client does. The
# `dst` of a Message is then the first of the other members. There are few shapes, so they are cached.
_NUMBER = rb"(0|[1-9]\d{0,14})"
_TYPE_TOPIC = rb'"type":([46]),"topic":"([^"\\\x00-\x1f]{0,90})"'  # a unit takes at most three bytes
_HEAD = re.compile(rb"\{" + _TYPE_TOPIC + rb",")
_TAIL = re.compile(rb"," + _TYPE_TOPIC + rb"\}")
_DST = re.compile(rb'\{"dst":' + _NUMBER + rb'(?:,(?=")|(?=\}))')
_MAX_NAMED = len(b'{"type":6,"topic":"",') + 90
_BRACE = ord("}")


Broadcast = tuple[bytes, bytes, str | None]  # its text, its content and its parent


@dataclass(frozen=True, slots=True)
class Shape:
    """The common beginning, or end, of a peer's packets (*head* or *tail* is empty), with its type and topic.

    Without shapes, a broadcast to 10 peers takes twice the CPU time (4.8 us a delivery instead of 2.5) and one to 100
    as well; a broadcast that comes alone takes 8 % more. Two properties hold them to `_decode_any`: of one packet, and
    of packets that arrive together.
    """

    head: bytes
    tail: bytes
    kind: int
    topic: str

    def read(self, data: bytes) -> tuple[bytes, Mapping[str, Any], str | None, int | None] | None:
        """The content, fields, parent and `dst` of *data*, which has this shape; None if `decode` has to read it.

        The reserved members are cut off. The rest is a JSON object without reserved members, however they are
        escaped, if and only if the whole is an object with each of them once: so to parse the rest checks everything.
        """
        if len(data) > MAX_PACKET:
            return None
        content = b"{" + data[len(self.head) :] if self.head else data[: -len(self.tail)] + b"}"
        if content[1:2] != b'"' or content[-1] != _BRACE:  # else a surplus comma would be cut off unnoticed
            return None
        dst = None
        if self.kind == MESSAGE and (found := _DST.match(content)):
            dst, content = int(found[1]), b"{" + content[found.end() :]
        try:
            fields = orjson.loads(content) if len(content) <= SHORT_SIZE else loads(content)
        except ValueError:
            return None
        if not RESERVED_KEYS.isdisjoint(fields) or (len(fields) == 1 and WRAPPER_KEY in fields):
            return None
        parent = fields.get("inReplyTo")
        if 10 in content or 13 in content:  # as `one_line` asks: spares the call
            content = one_line(content)
        return content, fields, parent if type(parent) is str else None, dst

    def packet(self, data: bytes) -> Packet | None:
        """The packet *data*, which has this shape; None if `_decode_any` has to read it."""
        if (found := self.read(data)) is None:
            return None
        content, fields, parent, dst = found
        return Packet(self.kind, self.topic, data, fields, dst, content, parent)

    def read_run(self, messages: Sequence[bytes], at: int) -> list[Broadcast]:
        """The broadcasts of this shape from *at* on, up to the first packet that `read` cannot read."""
        head, tail, read = self.head, self.tail, self.read
        broadcasts: list[Broadcast] = []
        for index in range(at, len(messages)):
            text = messages[index]
            if not (text.startswith(head) and text.endswith(tail)) or (found := read(text)) is None:
                break
            broadcasts.append((text, found[0], found[2]))
        return broadcasts


def shape_of(data: bytes) -> Shape | None:
    """The shape of *data*; None if it has none of the common ones."""
    end = data.find(b'","') + 2
    if end <= _MAX_NAMED and (shape := _shape(data[:end], b"")):
        return shape
    end = data.rfind(b',"type":', -_MAX_NAMED)
    return _shape(b"", data[end:]) if end > 0 else None


def decode_common(data: bytes) -> Packet | None:
    """A Message or Broadcast of a common shape; None if `_decode_any` has to read it."""
    shape = shape_of(data)
    return None if shape is None else shape.packet(data)


@lru_cache(CACHED_CHANNELS)
def _shape(head: bytes, tail: bytes) -> Shape | None:
    """The shape with this *head* or *tail*, if it names a type and a topic that is not too long."""
    match = _HEAD.fullmatch(head) or _TAIL.fullmatch(tail)
    if match is None:
        return None
    try:
        topic = match[2].decode()
    except UnicodeDecodeError:
        return None
    return Shape(head, tail, int(match[1]), topic) if utf16_length(topic) <= MAX_TOPIC else None


def _decode_any(data: bytes, max_members: int) -> Packet:
    packet = _without_content(data, max_members)
    text, fields, kind = packet.text, packet.fields, packet.kind
    if kind == MESSAGE:
        packet.dst = _peer_number(_number(text, fields, "dst"))
    if kind in (MESSAGE, BROADCAST):
        packet.content, packet.parent = _content(text), _parent(fields)
    return packet


def _without_content(data: bytes, max_members: int) -> Packet:
    """Check everything that is checked of a packet; its destination, content and parent are left out."""
    text, fields = _read(data)
    if type(fields) is not dict or _is_laborious(text, fields, max_members):
        raise PacketError("InvalidParams")
    kind, topic = _number(text, fields, "type"), fields.get("topic")
    if kind is None or type(topic) is not str:
        raise PacketError("InvalidParams", text, fields)
    if utf16_length(topic) > MAX_TOPIC:
        raise PacketError("TopicNameIsTooLong", text, fields)
    return Packet(kind, topic, text, fields)


def _read(data: bytes) -> tuple[bytes, Any]:
    try:
        return data, loads(data)
    except UnicodeDecodeError:  # from a binary message; the reference reads it like this
        return _read(data.decode(errors="replace").encode())
    except ValueError:
        raise PacketError("InvalidParams" if _is_too_deep(data) else "InvalidJSON") from None


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = [0] * 256
for _bracket, _step in zip(b"[{]}", (1, 1, -1, -1), strict=True):
    _STEPS[_bracket] = _step


def _is_too_deep(text: bytes) -> bool:
    """Whether *text* is nested more deeply than `MAX_DEPTH`, which `loads` refuses."""
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    return any(depth > MAX_DEPTH for depth in accumulate(map(_STEPS.__getitem__, brackets)))


def _number(text: bytes, fields: Mapping[str, Any], key: str) -> float | None:
    """The number in member *key*; None if it is not a number. `loads` reads one beyond a double as null."""
    value = fields.get(key)
    if value is None and key in fields:
        *_, raw = (value for name, _, value in members(text) if name == key)
        return None if raw == "null" else inf
    return value if type(value) in (int, float) else None


def _is_laborious(text: bytes, fields: Mapping[str, Any], most: int) -> bool:
    """Whether more than *most* members of the packet would be looked at one by one, because `_cut` is not enough."""
    if text.count(b":") <= most:
        return False
    if fields.get("type") in (MESSAGE, BROADCAST) and fields.get("dst", 0) is not None and _cut(text) is not None:
        return False
    return next(islice(members(text), most, None), None) is not None  # one name may be there many times


def _peer_number(number: float | None) -> int | None:
    if number is None:
        return None
    return int(number) if isinstance(number, int) or number.is_integer() else NO_PEER


def _content(text: bytes) -> bytes:
    if (cut := _cut(text)) is not None:
        return one_line(b"{%b}" % cut[1])
    kept = [member for member in members(text) if member[0] not in RESERVED_KEYS]
    if kept and all(key == WRAPPER_KEY for key, _, _ in kept):
        return one_line(kept[-1][2].encode())
    return one_line(("{" + ",".join(member for _, member, _ in kept) + "}").encode())


def _parent(fields: Mapping[str, Any]) -> str | None:
    content = fields[WRAPPER_KEY] if fields.keys() - RESERVED_KEYS == {WRAPPER_KEY} else fields
    parent = content.get("inReplyTo") if isinstance(content, dict) else None
    return parent if isinstance(parent, str) else None


# Encoding


def forward(packet: Packet, src: int) -> bytes:
    """The text that other peers get: *packet* as it was written, with *src* as its only `src`."""
    if "src" in packet.fields:
        return extend(packet.text, packet.fields, src=src)
    return packet.text.rstrip()[:-1] + src_tail(src)


def src_tail(src: int) -> bytes:
    """The text that replaces the last brace of a packet without a `src` when it is forwarded."""
    return b',"src":%d}' % src


def extend(text: bytes, fields: Mapping[str, Any], **added: Any) -> bytes:
    """The object *text*, whose members are *fields*, with the *added* members, which replace those of the same name."""
    if not added.keys().isdisjoint(fields):
        text = without(text, added)
    head = text.rstrip()[:-1]
    return head + (b"" if head.strip() == b"{" else b",") + dumps(added)[1:]


def encode(topic: str, content: bytes, src: int, dst: int | None = None) -> bytes:
    """A message of another protocol as a packet: a Broadcast, or a Message to *dst*."""
    head = b'{"type":%d,"topic":%b,"src":%d' % (
        BROADCAST if dst is None else MESSAGE,
        dumps(topic),
        src,
    )
    if dst is not None:
        head += b',"dst":%d' % dst
    value, content = loads(content), content.strip()
    if type(value) is not dict or not RESERVED_KEYS.isdisjoint(value) or value.keys() == {WRAPPER_KEY}:
        return b'%b,"%b":%b}' % (head, WRAPPER_KEY.encode(), content)
    return head + (b"," if value else b"") + content[1:]


def members(text: bytes) -> Iterator[tuple[str, str, str]]:
    """The members of the JSON object *text*, which `loads` has accepted, in order.

    Each is its key, its text including the whitespace around it, and the text of its value.
    """
    source = text.decode()
    at = source.index("{") + 1
    while key := _KEY.match(source, at):
        start = key.end()
        _, end = _scan(source, start)
        after = _END.match(source, end)
        assert after is not None  # `loads` has accepted the object
        name = key[1] if "\\" not in key[1] else _scan(f'"{key[1]}"')[0]
        yield name, source[at : after.start(1)], source[start:end]
        at = after.end()


_KEY = re.compile(r'[ \t\n\r]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t\n\r]*:[ \t\n\r]*')
_END = re.compile(r"[ \t\n\r]*([,}])")
# Numbers stay text: they are only skipped, and text has no limit of digits.
_scan = JSONDecoder(parse_int=str, parse_float=str).raw_decode


def without(text: bytes, names: Collection[str]) -> bytes:
    """The object *text* without the members called *names*."""
    if RESERVED_KEYS.issuperset(names) and (cut := _cut(text)) is not None:
        head, content, tail = cut
        kept = b",".join((*_members_but(names, head), content, *_members_but(names, tail)))
        return b"{%b}" % kept
    left = (member for key, member, _ in members(text) if key not in names)
    return ("{" + ",".join(left) + "}").encode()


# Reserved members without escapes, as programs write them before or after the content.
_MEMBER = rb'( *"(%b)" *: *(?:[-+.\w]+|"[^"\\]*") *)' % b"|".join(key.encode() for key in sorted(RESERVED_KEYS))
_FIRST, _LAST = re.compile(_MEMBER + b","), re.compile(b"," + _MEMBER)
_Cut = tuple[list[re.Match[bytes]], bytes, list[re.Match[bytes]]]


def _cut(text: bytes) -> _Cut | None:
    """The reserved members with which the object *text* begins, its content without braces, and those at its end.

    None if it is not like that, and has to be read member by member, which takes a hundred times as long: if there is
    no content, or reserved members are in it. As for `Shape.read`, parsing the content checks everything.
    """
    text = text.strip()
    start, end = 1, len(text) - 1
    head, tail = list[re.Match[bytes]](), list[re.Match[bytes]]()
    while len(head) < len(RESERVED_KEYS) and (found := _FIRST.match(text, start)):
        head.append(found)
        start = found.end()
    while len(tail) < len(RESERVED_KEYS) and (
        found := _LAST.fullmatch(text, max(0, text.rfind(b",", start, end)), end)
    ):
        tail.insert(0, found)
        end = found.start()
    content = text[start:end]
    try:
        fields = loads(b"{%b}" % content)
    except ValueError:
        return None
    if not fields or not RESERVED_KEYS.isdisjoint(fields) or (len(fields) == 1 and WRAPPER_KEY in fields):
        return None
    return head, content, tail


def _members_but(names: Collection[str], found: list[re.Match[bytes]]) -> Iterator[bytes]:
    return (each[1] for each in found if each[2].decode() not in names)
