"""Any bytes decode or raise `StreamrError`, and encoded frames survive the round trip."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adapters.streamr.wire.codec import _decode, decode_control, encode
from adapters.streamr.wire.control import (
    NO_REQUEST_ID,
    ControlFrame,
    ControlType,
    ErrorResponse,
    MessageDelivery,
    PublishRequest,
    ResendRequest,
    StreamResponse,
    SubscribeRequest,
    UnsubscribeRequest,
)
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import (
    MessageID,
    MessageRef,
    StreamMessage,
    _decode_general,
    decode_message_fast,
    parse_message,
)
from gateway.core.jsontext import loads

texts = st.text(st.characters(codec=None), max_size=8)
names = texts.filter(bool)
integers = st.integers(0, 2**53 - 1)
refs = st.builds(MessageRef, integers, st.none() | integers)
tokens = st.none() | texts
awkward = st.text('",[]\\r', max_size=6)  # what stands around an id
partitions = st.integers(0, 100)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=12,
)
near: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, -1, 1.0, True, 2**53 - 1, 2**53, "", "x", None, [], [1, 0], [1], [None, None], {}]
)
rows = st.builds(lambda version, rest: [version, *rest], st.sampled_from([30, 31, 32]), st.lists(values, max_size=12))
arrays = st.builds(
    lambda version, kind, rest: [version, kind, *rest],
    st.sampled_from([1, 2]),
    st.integers(0, 13),
    st.lists(values | rows, max_size=9),
)


@st.composite
def messages(draw: st.DrawFn) -> StreamMessage:
    message_id = draw(st.builds(MessageID, names, integers, st.integers(1, 2**53 - 1), integers, texts, texts))
    prev = draw(st.none() | st.builds(MessageRef, st.integers(0, message_id.timestamp - 1), st.none() | integers))
    return StreamMessage(
        message_id,
        draw(names),
        prev_ref=prev,
        message_type=draw(st.integers(27, 32)),
        encryption_type=draw(st.integers(0, 2)),
        group_key_id=draw(tokens),
        new_group_key=draw(st.none() | st.just('["id",  "key"]')),
        signature_type=draw(st.integers(0, 2)),
        signature=draw(tokens),
    )


# fmt: off
where: dict[str, Any] = {"stream_id": names, "stream_partition": partitions}
resends: dict[str, Any] = {**where, "session_token": tokens, "request_id": names}
carriers: st.SearchStrategy[PublishRequest | MessageDelivery] = st.one_of(
    st.builds(PublishRequest, message=messages(), session_token=tokens, request_id=texts),
    st.builds(MessageDelivery, type=st.sampled_from([ControlType.BROADCAST, ControlType.UNICAST]), message=messages(),
              request_id=names),
)
frames: st.SearchStrategy[ControlFrame] = st.one_of(
    carriers,
    st.builds(SubscribeRequest, **where, session_token=tokens, request_id=texts),
    st.builds(UnsubscribeRequest, **where, request_id=texts),
    st.builds(ResendRequest, **resends, number_last=integers),
    st.builds(ResendRequest, **resends, from_ref=refs, publisher_id=tokens),
    st.builds(ResendRequest, **resends, from_ref=st.just(MessageRef(0)), to_ref=refs, publisher_id=tokens,
              msg_chain_id=tokens),
    st.builds(StreamResponse, type=st.sampled_from([t for t in ControlType if 2 <= t <= 6]), **where, request_id=names),
    st.builds(ErrorResponse, error_message=texts, error_code=texts, request_id=texts),
)
# fmt: on


def read_or_refuse(data: bytes | str) -> None:
    for read in (decode_control, parse_message):
        with suppress(StreamrError):
            read(data)


@given(st.binary() | st.text(st.characters(codec=None)))
def test_any_bytes_are_read_or_refused(data: bytes | str) -> None:
    read_or_refuse(data)


@given(values | rows | arrays, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_any_json_is_read_or_refused(value: Any, separators: tuple[str, str]) -> None:
    read_or_refuse(json.dumps(value, separators=separators))


@given(messages(), st.data())
def test_a_message_with_one_field_changed_is_read_or_refused(message: StreamMessage, data: st.DataObject) -> None:
    row = json.loads(message.encode(data.draw(st.sampled_from([30, 31, 32]))))
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(values)
    read_or_refuse(json.dumps([2, 8, "r", row[: data.draw(st.integers(0, 12))], None], separators=(",", ":")))


def outcome(read: Callable[..., Any], *arguments: Any) -> Any:
    """What *read* makes of its arguments, or what it says is wrong with them."""
    try:
        return read(*arguments)
    except StreamrError as error:
        return error.message


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(messages(), st.data())
def test_the_fast_decoders_agree_with_the_general_ones(message: StreamMessage, data: st.DataObject) -> None:
    row = json.loads(message.encode(32))
    for place in (row, row[1], row[2] or [0]):
        if data.draw(st.booleans()):
            place[data.draw(st.integers(0, len(place) - 1))] = data.draw(near | values)
    wire = json.dumps(row).encode()
    assume(b"Infinity" not in wire and b"NaN" not in wire)
    row = loads(wire)
    usual = decode_message_fast(wire)
    assert usual is None or usual == outcome(_decode_general, row, wire)
    assert usual is None or (usual.wire, usual.verbatim, usual.version) == (wire, True, 32)
    frame = [data.draw(st.sampled_from([2, 2.0, 1, True])), data.draw(st.sampled_from([8, 8.0, "8"]))]
    frame += [data.draw(awkward | texts), row, data.draw(st.none() | awkward | texts | st.just(5))]
    text = json.dumps(frame, separators=(",", ":"), ensure_ascii=data.draw(st.booleans())).encode(errors="replace")
    read, closely = outcome(decode_control, text), outcome(_decode, loads(text), text)
    assert read == closely
    assert isinstance(read, str) or read.message.wire == closely.message.wire


@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize(
    "around", [("r", None), ('",[', '",['), ("\\", "\\"), ("é", None), ("r", "é"), ("\ud800", None)]
)
def test_fields_around_a_message_do_not_change_its_text(around: tuple[str, str | None], escaped: bool) -> None:
    row = b'[32,["s",0,1,0,"",""],null,27,0,0,null,"1",null,0,null]'
    before, after = (json.dumps(each, ensure_ascii=escaped) for each in around)
    text = f"[2,8,{before},".encode(errors="replace") + row + f",{after}]".encode()
    read = decode_control(text)
    assert isinstance(read, PublishRequest)
    assert read.message.wire == row
    assert read.session_token == around[1]


@given(frames)
def test_frames_of_version_2_survive_the_round_trip(frame: ControlFrame) -> None:
    assert decode_control(encode(frame, 2)) == frame


@given(frames)
def test_frames_of_version_1_survive_the_round_trip_except_for_missing_fields(frame: ControlFrame) -> None:
    found = decode_control(encode(frame, 1))
    assert found.version == 1
    assert found.request_id in (frame.request_id, NO_REQUEST_ID)
    assert encode(found, 1) == encode(frame, 1)


@given(carriers, st.sampled_from([1, 2]))
def test_a_message_is_cut_out_of_its_frame_byte_for_byte(frame: Any, version: int) -> None:
    row = frame.message.encode(32)
    found = decode_control(encode(frame, version))
    assert isinstance(found, PublishRequest | MessageDelivery)
    assert found.message.wire == row
    assert found.message.encode(32) == row


@given(messages(), st.permutations([30, 31, 32]))
def test_version_conversions_keep_the_signed_fields(message: StreamMessage, versions: list[int]) -> None:
    converted = message
    for version in versions:
        converted = parse_message(converted.encode(version))
        assert converted.version == version
    for name in ("id", "content", "prev_ref", "message_type", "signature_type", "signature"):
        assert getattr(converted, name) == getattr(message, name)


@pytest.mark.parametrize("version", [30, 31, 32])
@given(message=messages())
def test_a_row_is_read_back(version: int, message: StreamMessage) -> None:
    assert parse_message(message.encode(version)).encode(version) == message.encode(version)
    if version == 32:
        assert parse_message(message.encode(version)) == message
