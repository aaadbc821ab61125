"""Accepted messages are read back from the log unchanged, and other lines are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.channels import valid_name
from gateway.core.jsontext import MAX_DEPTH, find_reply_id, loads
from gateway.core.message import Message, Peer
from gateway.storage import record
from gateway.storage.record import BadRecord, Entry, Fact, decode, decode_untrusted, encode, verify_checksum
from gateway.storage.record_schema import FACT_FIELDS, MAX_SEQ, MAX_TIME

# Text that looks like the record around it.
TRAPS = st.sampled_from(
    [',"crc":"', ',"crc":"00000000"}', ',"content":', '"}', ',"wire":"', ',"parent":"x"', "\\", '\\"', "\ud800", "\0"]
)
TEXT = st.text(max_size=20) | st.lists(TRAPS | st.text(max_size=3), max_size=4).map("".join)
WHOLE = st.integers(-(1 << 63), (1 << 64) - 1)
NUMBERS = st.sampled_from([b"1e400", b"-0", b"-0.0", b"1.10", b"12345678901234567890123", b"1E+2", b"9" * 400])
SPACE = st.sampled_from([b"", b" ", b"\t ", b"  "])


def written(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def array(items: list[bytes]) -> bytes:
    return b"[" + b" , ".join(items) + b"]"


def object_(items: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(name + b" :" + value for name, value in items) + b"}"


# One JSON value as somebody may write it, on one line: odd numbers, odd spaces, keys that come twice.
VALUES = st.recursive(
    TEXT.map(written) | NUMBERS | st.sampled_from([b"null", b"true", b"false"]),
    lambda values: (
        st.lists(values, max_size=4).map(array)
        | st.lists(st.tuples(TEXT.map(written), values), max_size=4).map(object_)
    ),
    max_leaves=10,
)
CONTENTS = st.tuples(SPACE, VALUES, SPACE).map(b"".join)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXT, values, max_size=3),
    max_leaves=8,
)
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20).filter(valid_name)
NATIVES = st.dictionaries(st.sampled_from(["sprout", "streamr"]), JSON, max_size=2)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    native = draw(st.none() | NATIVES)
    named = [id for id in (native or {}).values() if isinstance(id, str)]
    others = draw(st.lists(TEXT.filter(lambda other: other not in named), max_size=2))
    return Message(
        channel=draw(NAMES),
        sender=Peer(draw(st.integers(0, 1 << 53)), "toy", draw(st.none() | TEXT)),
        protocol="toy",
        content=draw(CONTENTS),
        id=draw(TEXT),
        seq=draw(st.integers(1, MAX_SEQ)),
        time=draw(st.integers(0, MAX_TIME)),
        timestamp=draw(st.integers(0, 1 << 48)),
        parent=draw(st.none() | TEXT),
        ids=(*named, *others),
        native=native,
        key=draw(st.none() | TEXT),
        wire=draw(st.none() | st.text(max_size=50).map(str.encode)),
        refs=draw(st.just({}) | NATIVES),
        undelivered=tuple(draw(st.lists(st.sampled_from(["a", "b"]), max_size=2))),
    )


# What the members of facts are, where they are not just any value.
MEMBERS: dict[str, st.SearchStrategy[Any]] = {
    "gateway": TEXT, "version": TEXT, "protocol": TEXT, "sender": TEXT, "wire": TEXT, "channel": NAMES,
    "peer": st.integers(0, 1 << 53), "of": st.integers(1, MAX_SEQ), "minute": st.integers(0, MAX_TIME),
    "addresses": st.dictionaries(TEXT, TEXT, max_size=3), "open": st.booleans(), "flows": st.lists(JSON, max_size=3),
}  # fmt: skip


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    kind = draw(st.sampled_from(sorted(FACT_FIELDS)))
    taken = ("seq", "time", "kind", "crc", "name", "first", *FACT_FIELDS[kind])
    others = draw(st.dictionaries(TEXT.filter(lambda name: name not in taken), JSON, max_size=2))
    fields = {name: draw(MEMBERS.get(name, JSON)) for name in FACT_FIELDS[kind]} | others
    return Fact(kind, fields, draw(st.integers(1, MAX_SEQ)), draw(st.integers(0, MAX_TIME)))


def fields(entry: Entry) -> Any:
    if isinstance(entry, Fact):
        return entry.kind, entry.fields, entry.seq, entry.time
    return {name: getattr(entry, name) for name in Message.__struct_fields__ if name not in ("forms", "late", "target")}


@given(messages() | facts())
def test_records_survive_the_round_trip(entry: Entry) -> None:
    line = encode(entry)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = decode(line)
    assert fields(back) == fields(entry)
    assert encode(back) == line


@given(messages())
def test_a_record_line_is_json_with_an_equal_value(message: Message) -> None:
    line = encode(message)
    found = json.loads(line)
    assert found["content"] == json.loads(message.content)
    loads(message.content)  # a door takes it
    assert int(found["crc"], 16) == crc32(line.rpartition(b',"crc"')[0])


@given(st.binary(max_size=200))
@example(b',"crc":"00000000"}')
@example(b"")
@example(b"\n")
def test_any_bytes_decode_or_raise_bad_record(data: bytes) -> None:
    for read in (verify_checksum, decode):
        with suppress(BadRecord):
            read(data)


# Bodies that are nearly records, and sealed as if they were.
HEADS = st.sampled_from(
    [
        b"",
        b'{"seq":1,"time":2,"kind":"message","channel":"c","id":"i","protocol":"p","peer":1,"content":',
        b'{"seq":1,"time":2,"kind":"start","gateway":"g","version":',
        b'{"seq":1,"time":2,"kind":',
    ]
)


TAILS = st.sampled_from([b"", b',"wire":"w"', b',"native":1', b',"ids":[1]', b',"other":1', b',"key":null'])
BODIES = st.tuples(HEADS, st.binary(max_size=50) | CONTENTS, TAILS).map(b"".join)


@given(BODIES)
def test_any_bytes_with_a_valid_checksum_decode_or_raise_bad_record(body: bytes) -> None:
    with suppress(BadRecord):
        decode(b'%b,"crc":"%08x"}\n' % (body, crc32(body)))


def outcome(line: bytes) -> Any:
    try:
        return fields(decode(line))
    except BadRecord as error:
        return str(error)


@given(messages().map(encode) | BODIES.map(lambda body: b'%b,"crc":"%08x"}\n' % (body, crc32(body))))
def test_the_decoder_of_messages_agrees_with_the_general_reader(line: bytes) -> None:
    quick = outcome(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_MESSAGE_DECODER", msgspec.json.Decoder(int))  # takes no record
        assert outcome(line) == quick


@given(messages(), st.data())
def test_any_other_line_is_refused(message: Message, data: st.DataObject) -> None:
    line = encode(message)
    place = data.draw(st.integers(0, len(line) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = line[:place] + bytes([line[place] ^ flip]) + line[place + 1 :]
    try:
        back = decode(damaged)
    except BadRecord:
        return
    raise AssertionError(f"{back} was taken")


DEEP = st.integers(MAX_DEPTH - 3, MAX_DEPTH + 3).map(lambda depth: b"[" * depth + b"]" * depth)


@given(st.tuples(HEADS, st.binary(max_size=50) | CONTENTS | DEEP | TEXT.map(written), TAILS).map(b"".join))
def test_decode_untrusted_additionally_checks_only_the_depth(body: bytes) -> None:
    """It is refused exactly if `decode` refuses it, or `check` its text."""
    line = b'%b,"crc":"%08x"}\n' % (body, crc32(body))
    assert _accepts(lambda: decode_untrusted(line)) == _accepts(
        lambda: (decode(line), find_reply_id(body + b"}", MAX_DEPTH + 1))
    )


def _accepts(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return False
    return True
