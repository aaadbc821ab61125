"""Any JSON value passes from any protocol to any other and back unchanged, digit for digit.

Each protocol is what its codec writes and reads; what is written for one is what its peers are sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.sprout.forest import content as arbor
from adapters.sprout.forest.forest import Content
from adapters.streamr.publishing.conversion import ids_of, to_bus_message
from adapters.streamr.wire.codec import decode_control, encode_broadcast
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.message import MessageID, StreamMessage
from adapters.topic_relay import codec as relay
from gateway.core.jsontext import one_line
from gateway.core.message import Message, Peer
from gateway.core.peers import PeerRegistry
from gateway.http import views
from gateway.http.media import parse_content

SENDER = Peer(7, "toy")
PEERS = PeerRegistry(0, lambda *_: None, lambda _: None, lambda *_: None, lambda _: None)


class Way(NamedTuple):
    """How a protocol carries content: what its peers are sent, and what is read when they say the same."""

    write: Callable[[bytes], Any]
    read: Callable[[Any], bytes]


def write_frame(content: bytes) -> bytes:
    """A BroadcastMessage, whose message a client can publish as it is."""
    row = StreamMessage(MessageID("s", 0, 1, 0, "0xab", "c"), content.decode()).encode(32)
    return encode_broadcast(2, row)


def read_frame(frame: bytes) -> bytes:
    _, _, _, row = json.loads(frame)
    request = decode_control(json.dumps([2, 8, "r", row, None]).encode())
    assert isinstance(request, PublishRequest)
    return to_bus_message(request.message, ids_of(request.message), "s", SENDER, 2).content


def read_shown(shown: bytes) -> bytes:
    """The content of a message as REST shows it; its text is between two members that are always there."""
    begin, end = shown.index(b'"content":') + len(b'"content":'), shown.rindex(b',"inReplyTo":')
    return parse_content(shown[begin:end])[0]


def read_reply(text: tuple[bytes, bool]) -> bytes:
    return arbor.decode_content(Content(text[0]), text[1], None)


# fmt: off
WAYS = {
    "topic_relay": Way(lambda content: relay.encode("t", content, 7), lambda text: relay.decode(text).content),
    "sprout":      Way(lambda content: arbor.encode_content(content, None), read_reply),
    "streamr":     Way(write_frame, read_frame),
    "rest":        Way(lambda content: views.message(PEERS, Message("c", SENDER, "toy", content)), read_shown),
}
# fmt: on


# Texts, not values: what a writer may write and `json.dumps` never does.

SPACE = st.sampled_from(["", "", " ", "\n", "\t \r\n  "])
DIGITS = (
    "0 -0 -0.0 1.10 1E5 1e-7 9007199254740993 -9007199254740993 12345678901234567890123 1e400 -1e400 1e-400"
    " 0.1000000000000000055511151231257827 123456789012345678901234567890.5e-3"
)
NUMBERS = st.sampled_from(DIGITS.split()) | st.integers(-(1 << 70), 1 << 70).map(str)
ESCAPES = st.sampled_from(["\\u0000", "\\ud83c", "\\udf33", "\\ud83c\\udf33", "\\/", "\\n", "\\\\", '\\"', "\\u00e9"])
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters='"\\' + "".join(map(chr, range(32))))
STRINGS = st.lists(ESCAPES | CHARACTERS, max_size=6).map(lambda parts: f'"{"".join(parts)}"')
KEYS = st.sampled_from([*relay.RESERVED_KEYS, "json", "content", "inReplyTo", "encrypted", "", "ty\\u0070e", "1"]).map(
    lambda key: f'"{key}"'
)


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    items = [f"{draw(SPACE)}{item}{draw(SPACE)}" for item in draw(st.lists(values, max_size=4))]
    return f"[{','.join(items) or draw(SPACE)}]"


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(KEYS | STRINGS, values), max_size=4, unique_by=lambda pair: json.loads(pair[0])))
    texts = [f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{value}{draw(SPACE)}" for key, value in members]
    return f"{{{','.join(texts) or draw(SPACE)}}}"


LEAVES = st.sampled_from(["null", "true", "false"]) | NUMBERS | STRINGS
VALUES = st.recursive(LEAVES, lambda values: arrays(values) | objects(values), max_leaves=12)
ALONE = st.builds('{{{}"{}"{}:{}}}'.format, SPACE, st.sampled_from(["json", "content", "type", "error"]), SPACE, VALUES)
TEXTS = st.builds("{}{}{}".format, SPACE, VALUES | objects(VALUES) | ALONE, SPACE)


def exact(text: bytes) -> Any:
    """The value that *text* says, with its numbers as they are written."""
    return json.loads(text, parse_int=_Digits, parse_float=_Digits)


class _Digits(str):
    """A number's own text, which is no string."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Digits) and str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(product(WAYS, WAYS)))
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_any_value_stays_the_same(first: str, second: str, text: str) -> None:
    content = one_line(text.strip(" \t\r\n").encode())
    said_value = exact(content)
    for name in (first, second, first):
        way = WAYS[name]
        content = way.read(way.write(content))
        assert exact(content) == said_value, name
        assert b"\n" not in content


def test_numbers_are_compared_by_their_digits() -> None:
    assert exact(b"[1.10]") != exact(b"[1.1]")
    assert exact(b"[1]") != exact(b'["1"]')
    assert exact(b"9007199254740993") != exact(b"9007199254740992")
