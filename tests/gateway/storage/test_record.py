from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import pytest

from gateway.core.jsontext import MAX_DEPTH, loads
from gateway.core.message import Message, Peer
from gateway.storage import record
from gateway.storage.record import (
    BadRecord,
    Fact,
    decode,
    decode_base64url,
    decode_untrusted,
    encode,
    encode_base64url,
    verify_checksum,
)
from gateway.storage.record_schema import FACT_FIELDS

# What each kind of fact looks like.
EXAMPLES: dict[str, dict[str, Any]] = {
    "start": {"gateway": "g", "version": "1"},
    "peer": {"peer": 1, "protocol": "toy", "sender": "who"},
    "channel": {"channel": "lobby", "addresses": {"toy": "LOBBY"}, "open": True},
    "entity": {"protocol": "toy", "native": "x", "wire": "y"},
    "form": {"protocol": "toy", "of": 3, "native": "z"},
    "counts": {"minute": 29_395_000, "flows": []},
}


def message(content: bytes = b'{"a":1}', **fields: Any) -> Message:
    defaults: dict[str, Any] = {"id": "an-id", "seq": 7, "time": 1_763_700_000_123, "timestamp": 1_763_700_000_123}
    return Message("lobby", Peer(3, "toy"), "toy", content, **defaults | fields)


def same(a: Message, b: Message) -> None:
    for name in Message.__struct_fields__:
        if name not in ("forms", "sender", "late", "target"):
            assert getattr(a, name) == getattr(b, name), name
    assert (a.sender.number, a.sender.protocol, a.sender.identity) == (
        b.sender.number,
        b.sender.protocol,
        b.sender.identity,
    )


def resealed(body: bytes) -> bytes:
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def test_the_line_of_a_small_message() -> None:
    body = (
        b'{"seq":7,"time":1763700000123,"channel":"lobby","id":"an-id","kind":"message","protocol":"toy","peer":3,'
        b'"content":{"a":1}'
    )
    assert encode(message()) == resealed(body)


def test_a_message_with_everything() -> None:
    full = message(
        b' [1e400, "\\ud800", 123456789012345678901234567890] ',
        timestamp=5,
        parent="another",
        native={"toy": "n", "other": ["s", 0, 1.5]},
        ids=("n", "digest"),
        key="alice:1",
        refs={"other": {"previous": None}},
        undelivered=("third",),
        wire=b'as received, "quoted"\r\n\x00',
    )
    full.sender = Peer(3, "toy", "who")
    line = encode(full)
    assert line.count(b"\n") == 1
    same(decode(line), full)  # type: ignore[arg-type]
    assert json.loads(line)["ids"] == ["digest"]


def test_the_protocol_of_an_identity_is_recorded_if_it_differs() -> None:
    keyed = message()
    keyed.sender = Peer(3, "rest", "alice")
    line = encode(keyed)
    assert b'"sender":"alice","sender_protocol":"rest","content"' in line
    same(decode(line), keyed)  # type: ignore[arg-type]
    keyed.sender = Peer(3, "toy", "alice")
    assert b"sender_protocol" not in encode(keyed)


def test_line_breaks_in_the_content_become_spaces() -> None:
    line = encode(message(b'{"a":\r\n1}'))
    assert line.count(b"\n") == 1
    assert decode(line).content == b'{"a":  1}'  # type: ignore[union-attr]


def test_content_of_the_maximal_depth_survives_the_round_trip() -> None:
    content = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    same(decode(encode(message(content))), message(content))  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1, 10**30])
def test_a_number_too_big_for_64_bits_behind_the_content_does_not_harm_it(number: int) -> None:
    odd = message(b' {"a" : "x" } ', native={"toy": [number, 1e22]}, wire=b"w")
    back = decode(encode(odd))
    assert isinstance(back, Message)
    assert (back.content, back.wire) == (odd.content, odd.wire)


def test_decoding_makes_no_value_of_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MiB of empty lists took 50 to 300 ms, and as long for each message of a page of history."""
    read: list[int] = []

    def counted(text: bytes, *depth: int) -> Any:
        read.append(len(text))
        return loads(text, *depth)

    monkeypatch.setattr(record, "loads", counted)
    for unit in (b"[],", b"{},", b"1e999,", b'"",', b'"\\ud800",', b"[" * 90 + b"]" * 90 + b","):
        content = b"[" + (unit * ((1 << 20) // len(unit)))[:-1] + b"]"
        same(decode(encode(message(content, wire=b"w"))), message(content, wire=b"w"))  # type: ignore[arg-type]
    assert sum(read) < 10_000


def test_untrusted_content_beyond_the_maximal_depth_is_refused() -> None:
    for depth, good in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False)):
        line = encode(message(b"[" * depth + b"]" * depth))
        if good:
            same(decode_untrusted(line), message(b"[" * depth + b"]" * depth))  # type: ignore[arg-type]
        else:
            with pytest.raises(BadRecord, match="nested deeper"):
                decode_untrusted(line)


@pytest.mark.parametrize(
    "change",
    [
        (b'"seq":7', b'"seq":0'),
        (b'"seq":7', b'"seq":7.0'),
        (b'"seq":7', b'"seq":true'),
        (b'"seq":7', b'"seq":%d' % (1 << 43)),
        (b'"time":1763700000123', b'"time":-1'),
        (b'"peer":3', b'"peer":-1'),
        (b'"peer":3', b'"peer":%d' % (1 << 62)),
        (b'"channel":"lobby"', b'"channel":""'),
        (b'"channel":"lobby"', b'"channel":"a\\u0000"'),
        (b'"protocol":"toy"', b'"protocol":null'),
        (b',"content"', b',"sender":null,"content"'),
        (b',"content"', b',"timestamp":"1","content"'),
        (b',"content"', b',"native":[],"content"'),
        (b',"content"', b',"undelivered":[1],"content"'),
        (b',"content"', b',"native":{"a":1,"content":2},"content"'),
        (b'"content":{"a":1}', b'"content":{"a":1'),
        (b'"content":{"a":1}', b'"content":NaN'),
        (b'"content":{"a":1}', b'"content":"\xff"'),
        (b'"content":{"a":1}', b'"content" :1'),
    ],
)
def test_every_field_is_of_its_type_and_in_its_range(change: tuple[bytes, bytes]) -> None:
    body = encode(message()).rpartition(b',"crc"')[0]
    decode(resealed(body))
    spoiled = body.replace(*change)
    assert spoiled != body
    with pytest.raises(BadRecord):
        decode(resealed(spoiled))


def test_lone_surrogates_in_other_fields_survive_the_round_trip() -> None:
    odd = message(b"1", native={"toy": "\ud800"}, refs={"b": "\udfff"}, ids=("\ud800",), parent="\ud801", key="\ud802")
    same(decode(encode(odd)), odd)  # type: ignore[arg-type]


def test_there_is_an_example_of_each_kind_of_fact() -> None:
    assert EXAMPLES.keys() == FACT_FIELDS.keys()


@pytest.mark.parametrize("kind", FACT_FIELDS)
def test_a_fact_survives_the_round_trip(kind: str) -> None:
    fact = decode(encode(Fact(kind, EXAMPLES[kind], 9, 8)))
    assert isinstance(fact, Fact)
    assert (fact.kind, fact.fields, fact.seq, fact.time) == (kind, EXAMPLES[kind], 9, 8)


@pytest.mark.parametrize(("kind", "missing"), [(kind, name) for kind, names in FACT_FIELDS.items() for name in names])
def test_a_fact_that_lacks_a_field_is_refused(kind: str, missing: str) -> None:
    fields = {name: value for name, value in EXAMPLES[kind].items() if name != missing}
    with pytest.raises(BadRecord):
        decode(encode(Fact(kind, fields, 9, 8)))


def test_the_protocol_of_a_fact() -> None:
    assert Fact("entity", EXAMPLES["entity"]).protocol == "toy"
    assert Fact("start", EXAMPLES["start"]).protocol == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1",
        b'{"kind":"message"',
        b'{"kind":"nonsense","seq":1,"time":1',
        b'{"kind":[],"seq":1,"time":1',
        b'{"kind":"start","seq":"1","time":1,"gateway":"","version":""',
        b'{"kind":"start","seq":1,"time":true,"gateway":"","version":""',
        b'{"seq":1,"time":1,"channel":"c","id":"i","kind":"message","protocol":"p","peer":1,"wire":7,"content":1',
        b'{"seq":1,"time":1,"channel":"c","id":"i","kind":"message","protocol":"p","peer":1',
        b'{"seq":1,"time":1,"channel":"c","id":"i","kind":"message","protocol":"p","peer":1,"content":1,"native":3',
        b'{"seq":1,"time":1,"channel":"c","id":"i","kind":"message","protocol":"p","peer":1,"content":1,"ids":3',
    ],
)
def test_an_invalid_record_with_a_valid_checksum_is_refused(body: bytes) -> None:
    with pytest.raises(BadRecord):
        decode(resealed(body))


def test_any_flipped_bit_is_noticed() -> None:
    line = encode(message(wire=b"w"))
    for place in range(8 * len(line)):
        damaged = bytearray(line)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(BadRecord):
            decode(bytes(damaged))


def test_any_shorter_line_is_noticed() -> None:
    line = encode(message())
    for end in range(len(line) - 1):
        with pytest.raises(BadRecord):
            verify_checksum(line[:end])


@pytest.mark.parametrize("wire", [b"", b"\0", b"\xff\xfe\xfd", bytes(range(256))])
def test_base64url_survives_the_round_trip(wire: bytes) -> None:
    text = encode_base64url(wire)
    assert b"=" not in text
    assert decode_base64url(text) == decode_base64url(text.decode()) == wire
