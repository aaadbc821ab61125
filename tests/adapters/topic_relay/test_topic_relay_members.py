"""Content may have many members, which are not parsed one by one; other parts of a packet may not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.topic_relay import codec
from adapters.topic_relay.codec import MAX_MEMBERS, PacketError, decode, decode_logged, forward

MANY = b",".join(b'"%d":0' % n for n in range(MAX_MEMBERS + 1))
SAME = b",".join([b'"":0'] * 12_000)


@pytest.mark.parametrize("content", [MANY, SAME])
@pytest.mark.parametrize(
    "around",
    [
        b'{"type":6,"topic":"t",%b}',
        b'{%b,"type":6,"topic":"t"}',
        b'{"type":6,"topic":"t","src":1,%b}',
        b'{"type": 6, "topic": "t", "src": 1, %b, "trellisId": "x"} ',
        b'{"type":4,"dst":1,"topic":"t","error":null,%b,"src":1}',
    ],
)
def test_content_may_have_many_members(around: bytes, content: bytes) -> None:
    """As programs and linked gateways write it; it is found without a look at each member."""
    packet = decode(around % content)
    assert packet.content.replace(b" ", b"") == b"{" + content + b"}"
    forwarded = forward(packet, 7)
    assert forwarded.count(b'"src"') == 1
    assert json.loads(forwarded) == {**json.loads(packet.text), "src": 7}


@pytest.mark.parametrize("content", [MANY, SAME])
@pytest.mark.parametrize(
    "around",
    [
        b'{"a":1,"src":1,"type":6,"topic":"t",%b}',
        b'{"type":6,"topic":"t","src":1,%b,"\\u0073rc":1}',
        b'{"type":6,"topic":"t",%b,"src":1,"a":1}',
        b'{"type":4,"dst":null,"topic":"t",%b,"src":1}',
        b'{"type":2,"topic":"t",%b,"peers":1}',
        b'{"type":null,"topic":"t",%b}',
        b'{"type":6,"topic":"t","src":{},%b}',
    ],
)
def test_unusual_packets_with_many_members_are_refused(around: bytes, content: bytes) -> None:
    """A packet of 65,000 units could otherwise hold up everybody for 50 ms."""
    with pytest.raises(PacketError, match="InvalidParams") as refused:
        decode(around % content)
    assert refused.value.reply() == b'{"error":"InvalidParams"}'


def test_logged_packets_with_many_members_are_read() -> None:
    text = b'{"a":1,"src":1,"type":6,"topic":"t",%b}' % MANY
    assert decode_logged(text).content == b'{"a":1,%b}' % MANY


@given(st.lists(st.sampled_from(sorted(codec.RESERVED_KEYS | {"a", "json", "\\u0073rc"})), max_size=8), st.data())
def test_cutting_reserved_members_off_is_the_same_as_leaving_them_out(names: list[str], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from(["1", '"x"', "{}", '"a,b"', ' "\\"" ', "null"]), min_size=len(names)))
    space = data.draw(st.sampled_from(["", " ", "\n"]))
    text = (
        "{" + ",".join(f'{space}"{name}":{value}' for name, value in zip(names, values, strict=False)) + "}"
    ).encode()
    left = [member for key, member, _ in codec.members(text) if key != "src"]
    assert codec.without(text, {"src"}) == ("{" + ",".join(left) + "}").encode()
    kept = [member for key, member, _ in codec.members(text) if key not in codec.RESERVED_KEYS]
    if (cut := codec._cut(text)) is not None:
        assert cut[1].decode() == ",".join(kept)
