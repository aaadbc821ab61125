"""The codec applies every check in its order, and splices texts without encoding them again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.topic_relay import codec
from adapters.topic_relay.codec import (
    MAX_PACKET,
    NO_PEER,
    RESERVED_KEYS,
    Packet,
    PacketError,
    decode,
    encode,
    extend,
    forward,
)
from gateway.core.jsontext import MAX_DEPTH, loads, one_line

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a test asserts no time

# JSON as people and programs write it: odd spacing, numbers beyond a double, escapes, names twice

SPACE = st.sampled_from(["", "", "", " ", "\n", "\t", "\r\n "])
NUMBERS = st.sampled_from(["-0", "0.0", "1e400", "-1e400", "1e-400", "12345678901234567890", "9007199254740993", "1E5"])
NAMES = st.sampled_from([*sorted(RESERVED_KEYS), "json", "inReplyTo", *"abcdefgh"])


def quoted(text: str, how: int) -> str:
    if how == 0:
        return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace").decode()
    return json.dumps(text) if how == 1 else '"' + "".join(f"\\u{ord(c):04x}" for c in text if ord(c) < 1 << 16) + '"'


STRINGS = st.builds(quoted, st.text(max_size=8), st.integers(0, 2))
KEYS = st.builds(quoted, NAMES | st.text(max_size=3), st.integers(0, 2))
SCALARS = STRINGS | NUMBERS | st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
SCALARS |= st.sampled_from(["null", "true", "false"] * 15 + ['"x', "{", "NaN"])


def spaced(parts: list[str], space: str) -> str:
    return "".join(f"{space}{part}" for part in parts)


def object_of(members: list[tuple[str, str]], space: str) -> str:
    return "{" + f"{space},".join(spaced([key, ":", value], space) for key, value in members) + space + "}"


def deeper(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = st.builds(lambda items, space: f"[{f'{space},'.join(items)}]", st.lists(values, max_size=3), SPACE)
    return arrays | st.builds(object_of, st.lists(st.tuples(KEYS, values), max_size=4), SPACE)


VALUES = st.recursive(SCALARS, deeper, max_leaves=8)
TYPES = st.sampled_from(["4", "4", "6", "6", "2", "7", "6.0", "1e400", "null", '"6"'])
TOPICS = st.sampled_from(['"t"', '"t"', '"測"']) | STRINGS


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """Something like a packet, in one of the usual shapes or in none, sometimes broken."""
    own = [f'"type":{draw(TYPES)}', f'"topic":{draw(TOPICS)}']
    dst = draw(st.sampled_from([[], [], [], ['"dst":0'], ['"dst":17'], ['"dst":07']]))
    space = draw(SPACE)
    rest = [spaced([key, ":", value], space) for key, value in draw(st.lists(st.tuples(KEYS, VALUES), max_size=3))]
    shapes = [own + dst + rest, dst + rest + own, draw(st.permutations(own + dst + rest))]
    text = "{" + f"{space},".join(draw(st.sampled_from(shapes))) + "}"
    head, tail = draw(st.sampled_from([("", "")] * 9 + [(" ", ""), ("", " "), ("", "}")]))
    broken = draw(st.sampled_from([0] * 9 + [draw(st.integers(0, len(text)))]))
    return f"{head}{text[:broken]}{text[broken + (broken > 0) :]}{tail}".encode()


def parsed(text: bytes | str) -> Any:
    """JSON as JavaScript has it: every number is a double."""
    return json.loads(text, parse_int=float)


def pairs(text: bytes) -> list[tuple[str, Any]]:
    """The members of an object, none of them lost."""
    found: list[tuple[str, Any]] = []

    def keep(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found[:] = members
        return dict(members)

    json.loads(text, object_pairs_hook=keep)
    return found


def read(data: bytes) -> Packet | PacketError:
    try:
        return decode(data)
    except PacketError as refused:
        return refused


# Any bytes


@PATIENT
@given(st.binary(max_size=200) | packets() | VALUES.map(str.encode))
def test_any_bytes_are_a_packet_or_refused_with_an_answer(data: bytes) -> None:
    packet = read(data)
    if isinstance(packet, PacketError):
        assert parsed(packet.reply())["error"] == packet.code


@PATIENT
@given(packets())
@example(b'{"type":6,"topic":"t","dst":5,"a":1}')
@example(b'{"dst":5,"a":1,"type":6,"topic":"t"}')
@example(b'{"type":6,"topic":"t","a":1} ')
def test_the_fast_decoder_agrees_with_the_general_one(data: bytes) -> None:
    quick = codec.decode_common(data)
    if quick is None:
        return
    careful = codec._decode_any(data, MAX_PACKET)
    fields = ("kind", "topic", "text", "dst", "content", "parent")
    assert [getattr(quick, name) for name in fields] == [getattr(careful, name) for name in fields]
    own = {"type": quick.kind, "topic": quick.topic} | ({} if quick.dst is None else {"dst": quick.dst})
    assert careful.fields == own | dict(quick.fields)


@PATIENT
@given(st.binary(max_size=200) | packets() | VALUES.map(str.encode))
@example(b'{"type":6,"topic":"t","a":1,"src":5}')
@example(b'{"type":6,"topic":"%b","a":1}' % (b"t" * 31))
@example(b'{"type":6,"topic":7,"a":1}')
@example(b'{"type":null,"topic":"t","a":1}')
@example(b'{"type":6,"topic":"t","a":%b}' % (b"[" * 201 + b"]" * 201))
def test_check_logged_refuses_what_decode_logged_refuses(data: bytes) -> None:
    codes = []
    for look in (codec.decode_logged, codec.check_logged):
        try:
            look(data)
            codes.append("")
        except PacketError as wrong:
            codes.append(wrong.code)
    assert codes[0] == codes[1]


@pytest.mark.parametrize(
    "text",
    [
        '{"type":6,"topic":"t","text":"hi","n":[1,{"type":7}]}',
        '{"text":"hi","n":[1,{"src":7}],"type":6,"topic":"t"}',
        '{"type":4,"topic":"t","dst":5,"text":"hi"}',
        '{"dst":5,"text":"hi","type":4,"topic":"t"}',
        '{"dst":5,"type":4,"topic":"t"}',
        '{"type":4,"topic":"t","dst":5}',
    ],
)
def test_usual_packets_take_the_fast_decoder(text: str) -> None:
    assert codec.decode_common(text.encode()) is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"type":6,"topic":"t",}',
        '{"type":6,"topic":"t", }',
        '{,"type":6,"topic":"t"}',
        '{ ,"type":6,"topic":"t"}',
        '{"dst":5,,"type":4,"topic":"t"}',
        '{"type":4,"topic":"t","dst":05}',
        '{"type":6,"topic":"t"}}',
        '{"type":6,"topic":"t\x01"}',
        '"a","type":6,"topic":"t"}',
        ',"type":6,"topic":"t"}',
        '{"a":"b,"type":6,"topic":"t"}',
    ],
)
def test_malformed_packets_of_usual_shape_are_refused(text: str) -> None:
    with pytest.raises(PacketError, match="InvalidJSON"):
        decode(text.encode())


# The checks, and their order


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        ("{" + "x" * MAX_PACKET, {"error": "MessageIsTooLong"}),
        ("{", {"error": "InvalidJSON"}),
        ("[]", {"error": "InvalidParams"}),
        ("null", {"error": "InvalidParams"}),
        ("{}", {"error": "InvalidParams"}),
        (" { } ", {"error": "InvalidParams"}),
        ('{"type":"6","topic":"' + "x" * 31 + '"}', {"type": "6", "topic": "x" * 31, "error": "InvalidParams"}),
        ('{"type":6,"topic":1}', {"type": 6, "topic": 1, "error": "InvalidParams"}),
        ('{"type":0,"topic":"' + "x" * 31 + '"}', {"type": 0, "topic": "x" * 31, "error": "TopicNameIsTooLong"}),
        ('{"error":1,"type":true,"\\u0065rror":2}', {"type": True, "error": "InvalidParams"}),
    ],
)
def test_each_malformed_packet_is_refused_with_its_answer(data: str, reply: dict[str, Any]) -> None:
    with pytest.raises(PacketError) as caught:
        decode(data.encode())
    assert parsed(caught.value.reply()) == reply


@pytest.mark.parametrize("deep", [MAX_DEPTH, 900, 5_000, 30_000])
def test_packets_nested_too_deeply_are_refused(deep: int) -> None:
    with pytest.raises(PacketError, match="InvalidParams"):
        decode(b'{"type":6,"topic":"t","x":' + b"[" * deep + b"]" * deep + b"}")
    decode(b'{"type":6,"topic":"t","x":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}")


@pytest.mark.parametrize(("character", "size"), [("x", 1), ("é", 1), ("測", 1), ("😀", 2)])
def test_sizes_are_counted_in_utf_16_units(character: str, size: int) -> None:
    head = '{"type":6,"topic":"t","d":"'
    room = MAX_PACKET - len(head) - 2
    text = head + character * (room // size) + "x" * (room % size) + '"}'
    assert decode(text.encode()).topic == "t"
    with pytest.raises(PacketError, match="MessageIsTooLong"):
        decode((text + " ").encode())


@pytest.mark.parametrize("topic", ["x" * 30, "測" * 30, "😀" * 15, "x" * 28 + "😀", ""])
def test_topics_are_counted_in_utf_16_units(topic: str) -> None:
    for dumped in (json.dumps(topic), json.dumps(topic, ensure_ascii=False)):
        assert decode(f'{{"type":6,"topic":{dumped}}}'.encode()).topic == topic
        with pytest.raises(PacketError, match="TopicNameIsTooLong"):
            decode(f'{{"type":6,"topic":"{dumped[1:-1]}{"x" * (31 - codec.utf16_length(topic))}"}}'.encode())


def test_half_a_surrogate_pair_is_kept_and_counted_as_one() -> None:
    packet = decode(rb'{"type":6,"topic":"\ud800","x":"\udc00"}')
    assert (packet.topic, packet.content) == ("\ud800", rb'{"x":"\udc00"}')
    with pytest.raises(PacketError, match="TopicNameIsTooLong"):
        decode(b'{"type":6,"topic":"' + rb"\ud800" * 31 + b'"}')


def test_invalid_utf_8_is_replaced_as_by_the_reference() -> None:
    packet = decode(b'{"type":6,"topic":"\xff\xfe","x":"\xe6\xb8"}')
    assert packet.topic == "\ufffd\ufffd"
    assert packet.text.decode() == '{"type":6,"topic":"\ufffd\ufffd","x":"\ufffd"}'


@pytest.mark.parametrize(
    ("number", "kind"), [("2", 2), ("2.0", 2), ("20e-1", 2), ("-0", 0), ("2.5", 2.5), ("1e400", float("inf"))]
)
def test_types_are_numbers_as_javascript_compares_them(number: str, kind: float) -> None:
    assert decode(f'{{"type":{number},"topic":"t"}}'.encode()).kind == kind


@pytest.mark.parametrize(
    ("dst", "peer"),
    [
        *[("0", 0), ("-0", 0), ("0.0", 0), ("0e5", 0), ("1e-400", 0), ("7.0", 7), ("1" * 400, NO_PEER)],
        *[("0.5", NO_PEER), ("1e400", NO_PEER)],
        *[("null", None), ("true", None), ('"0"', None), ("[0]", None)],
    ],
)
def test_destinations_are_numbers_as_javascript_compares_them(dst: str, peer: int | None) -> None:
    assert decode(f'{{"type":4,"topic":"t","dst":{dst}}}'.encode()).dst == peer


def test_quotes_without_end_are_read_once() -> None:
    with pytest.raises(PacketError, match="InvalidJSON"):
        decode(b'"' + rb"\"" * (MAX_PACKET // 2 - 1))


# Content


@pytest.mark.parametrize(
    ("rest", "content"),
    [
        ("", "{}"),
        (',"a":1', '{"a":1}'),
        (',"a" : 12345678901234567890 , "b":1.0', '{"a" : 12345678901234567890 , "b":1.0}'),
        (',"a":1e400', '{"a":1e400}'),
        (',"a":"\\u00e9\\/"', '{"a":"\\u00e9\\/"}'),
        (',"a":1,"a":2', '{"a":1,"a":2}'),
        (',"src":1,"a":1,"dst":2,"error":3', '{"a":1}'),
        (',"a":1,"\\u0073rc":1', '{"a":1}'),
        (',"a":{"type":1,"topic":2,"src":3}', '{"a":{"type":1,"topic":2,"src":3}}'),
        (',"a":"\\",\\"type\\":6"', '{"a":"\\",\\"type\\":6"}'),
        (',"json":5', "5"),
        (',"json": [1, 2] ', "[1, 2]"),
        (',"json":1,"\\u006ason":2', "2"),
        (',"json":1,"a":2', '{"json":1,"a":2}'),
        (',"src":1,"json":"x"', '"x"'),
        (',\r\n"a":\n1', '{  "a": 1}'),
        (',"a":1,\r\n"b":2', '{"a":1,  "b":2}'),
    ],
)
def test_content_is_cut_out_of_the_text(rest: str, content: str) -> None:
    assert decode(f'{{"type":6,"topic":"t"{rest}}}'.encode()).content.decode() == content


@PATIENT
@given(packets())
def test_content_has_none_of_the_protocols_keys_and_all_of_the_others(data: bytes) -> None:
    packet = read(data)
    if isinstance(packet, PacketError) or packet.kind not in (codec.MESSAGE, codec.BROADCAST):
        return
    said = {key: value for key, value in parsed(packet.text).items() if key not in RESERVED_KEYS}
    assert parsed(packet.content) == (said["json"] if said.keys() == {"json"} else said)
    assert b"\n" not in packet.content
    assert b"\r" not in packet.content


@pytest.mark.parametrize(
    ("rest", "parent"),
    [('"inReplyTo":"x"', "x"), ('"inReplyTo":5', None), ('"json":{"inReplyTo":"x","src":1}', "x"), ('"json":5', None)],
)
def test_a_packet_names_its_parent_in_its_content(rest: str, parent: str | None) -> None:
    assert decode(f'{{"type":6,"topic":"t",{rest}}}'.encode()).parent == parent
    assert decode(f'{{{rest},"type":6,"topic":"t"}}'.encode()).parent == parent


# Forwarding


@PATIENT
@given(packets(), st.integers(0, 1 << 40))
def test_the_sender_is_never_forged_nor_named_twice(data: bytes, src: int) -> None:
    packet = read(data)
    if isinstance(packet, PacketError):
        return
    forwarded = forward(packet, src)
    assert [value for key, value in pairs(forwarded) if key == "src"] == [src]
    assert parsed(forwarded) == parsed(packet.text) | {"src": src}


@pytest.mark.parametrize(
    ("text", "forwarded"),
    [
        ('{"type":6,"topic":"t","n":12345678901234567890}', '{"type":6,"topic":"t","n":12345678901234567890,"src":9}'),
        ('{"type":6,"topic":"t"} \n', '{"type":6,"topic":"t","src":9}'),
        ('{"src":1,"type":6,"topic":"t","n":1e400}', '{"type":6,"topic":"t","n":1e400,"src":9}'),
        ('{"type":6,"\\u0073rc":1,"topic":"t"}', '{"type":6,"topic":"t","src":9}'),
        ('{"type":6,"topic":"t","src":1, "src" :2}', '{"type":6,"topic":"t","src":9}'),
        ('{"type":6,"topic":"t","a":{"src":1}}', '{"type":6,"topic":"t","a":{"src":1},"src":9}'),
    ],
)
def test_forwarded_text_keeps_the_bytes_of_the_sender(text: str, forwarded: str) -> None:
    assert forward(decode(text.encode()), 9).decode() == forwarded


@PATIENT
@given(packets(), st.dictionaries(NAMES, st.integers() | st.text(max_size=3), min_size=1))
def test_extending_replaces_members_of_the_same_name(data: bytes, added: dict[str, Any]) -> None:
    packet = read(data)
    text = extend(packet.text, packet.fields, **added)
    assert parsed(text) == parsed(packet.text) | parsed(json.dumps(added))


# From elsewhere


@PATIENT
@given(VALUES, SPACE, st.text(max_size=15), st.integers(0, 1 << 50), st.none() | st.integers(0, 1 << 40))
def test_a_foreign_value_survives_the_round_trip(value: str, space: str, topic: str, src: int, dst: int | None) -> None:
    content = f"{space}{value}{space}".encode()
    try:
        expected = loads(content)
    except ValueError:
        return
    text = encode(topic, content, src, dst)
    packet = decode(text)
    assert (packet.topic, packet.dst) == (topic, dst)
    assert parsed(text)["src"] == src
    own = [key for key, _ in pairs(text) if key in RESERVED_KEYS]
    assert len(own) == len(set(own))
    assert packet.content == (one_line(content.strip()) if expected != {} else b"{}")


@pytest.mark.parametrize(
    ("content", "rest"),
    [
        (b"{}", b""),
        (b"{ }", b" "),
        (b'{"a":1.0}', b',"a":1.0'),
        (b'{"json":1,"a":2}', b',"json":1,"a":2'),
        (b'{"json":1}', b',"json":{"json":1}'),
        (b'{"topic":1}', b',"json":{"topic":1}'),
        (b'{"\\u0073rc":1}', b',"json":{"\\u0073rc":1}'),
        (b" 5 ", b',"json":5'),
        (b"[1, 2]", b',"json":[1, 2]'),
    ],
)
def test_foreign_values_are_encoded_as_members_or_as_json(content: bytes, rest: bytes) -> None:
    assert encode("t", content, 9) == b'{"type":6,"topic":"t","src":9' + rest + b"}"
    assert encode("t", content, 9, 0) == b'{"type":4,"topic":"t","src":9,"dst":0' + rest + b"}"
