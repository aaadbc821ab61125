"""The examples of S0, S1 and S2, with their placeholders filled in, and the shapes only they have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.streamr.wire.checks import MAX_INTEGER, MAX_QUOTED
from adapters.streamr.wire.codec import decode_control, encode, encode_broadcast, encode_unicast
from adapters.streamr.wire.control import (
    CONTROL,
    FRAMES,
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
from adapters.streamr.wire.message import MessageID, MessageRef, StreamMessage, parse_message
from adapters.streamr.wire.message_layouts import LAYOUTS

PUBLISHER = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"
ID = ["stream-id", 0, 425354887214, 0, PUBLISHER, "msg-chain-id"]
REF = [425354887001, 0]
ROW = [32, ID, REF, 27, 0, 0, None, '{"foo":42}', None, 2, "0x29c057786Fa"]
MESSAGE = parse_message(json.dumps(ROW))
FLAT = [30, "stream-id", 0, 425354887214, 0, PUBLISHER, 425354887001, 0, 120, 27, '{"a":1}', 1, "0x29"]

S0: list[tuple[list[Any], ControlFrame]] = [
    (
        [2, 8, "request-id", ROW, "token"],
        PublishRequest(message=MESSAGE, session_token="token", request_id="request-id"),
    ),
    ([2, 9, "r", "s", 0, "token"], SubscribeRequest(stream_id="s", session_token="token", request_id="r")),
    ([2, 10, "r", "s", 0], UnsubscribeRequest(stream_id="s", request_id="r")),
    ([2, 11, "r", "s", 0, 500, "t"], ResendRequest(stream_id="s", number_last=500, session_token="t", request_id="r")),
    (
        [2, 12, "r", "s", 0, REF, "publisher-id", "msg-chain-id", "t"],
        ResendRequest(
            stream_id="s",
            from_ref=MessageRef(*REF),
            publisher_id="publisher-id",
            msg_chain_id="msg-chain-id",
            session_token="t",
            request_id="r",
        ),
    ),
    (
        [2, 13, "r", "s", 0, REF, [425354887214, 0], None, None, "t"],
        ResendRequest(
            stream_id="s",
            from_ref=MessageRef(*REF),
            to_ref=MessageRef(425354887214, 0),
            session_token="t",
            request_id="r",
        ),
    ),
    ([2, 0, "r", ROW], MessageDelivery(type=ControlType.BROADCAST, message=MESSAGE, request_id="r")),
    ([2, 1, "r", ROW], MessageDelivery(type=ControlType.UNICAST, message=MESSAGE, request_id="r")),
    ([2, 2, "r", "s", 0], StreamResponse(type=ControlType.SUBSCRIBED, stream_id="s", request_id="r")),
    ([2, 3, "r", "s", 0], StreamResponse(type=ControlType.UNSUBSCRIBED, stream_id="s", request_id="r")),
    ([2, 4, "r", "s", 0], StreamResponse(type=ControlType.RESENDING, stream_id="s", request_id="r")),
    ([2, 5, "r", "s", 0], StreamResponse(type=ControlType.RESENT, stream_id="s", request_id="r")),
    ([2, 6, "r", "s", 0], StreamResponse(type=ControlType.NO_RESEND, stream_id="s", request_id="r")),
    ([2, 7, "r", "message", "CODE"], ErrorResponse(error_message="message", error_code="CODE", request_id="r")),
]
V1: dict[str, Any] = {"version": 1, "request_id": NO_REQUEST_ID}
SUB: dict[str, Any] = {"version": 1, "request_id": "sub"}
S1: list[tuple[list[Any], ControlFrame]] = [
    ([1, 8, ROW, "key", "token"], PublishRequest(message=MESSAGE, api_key="key", session_token="token", **V1)),
    ([1, 9, "s", 0, "key", "token"], SubscribeRequest(stream_id="s", api_key="key", session_token="token", **V1)),
    ([1, 9, "s", None, None, "token"], SubscribeRequest(stream_id="s", session_token="token", **V1)),
    ([1, 10, "s", 0], UnsubscribeRequest(stream_id="s", **V1)),
    ([1, 11, "s", 0, "sub", True, None, None, None], ResendRequest(stream_id="s", from_ref=MessageRef(0), **SUB)),
    ([1, 11, "s", 0, "sub", True], ResendRequest(stream_id="s", from_ref=MessageRef(0), **SUB)),
    ([1, 11, "s", 0, "sub", None, 1324, None, None], ResendRequest(stream_id="s", number_last=1324, **SUB)),
    ([1, 11, "s", 0, "sub", False, 0], ResendRequest(stream_id="s", number_last=0, **SUB)),
    (
        [1, 11, "s", 0, "sub", None, None, 234, 512],
        ResendRequest(stream_id="s", from_ref=MessageRef(234), to_ref=MessageRef(512), **SUB),
    ),
    ([1, 0, ROW], MessageDelivery(type=ControlType.BROADCAST, message=MESSAGE, **V1)),
    ([1, 1, 234, ROW], MessageDelivery(type=ControlType.UNICAST, message=MESSAGE, version=1, request_id=234)),
    ([1, 2, "s", 0], StreamResponse(type=ControlType.SUBSCRIBED, stream_id="s", **V1)),
    ([1, 3, "s", 0], StreamResponse(type=ControlType.UNSUBSCRIBED, stream_id="s", **V1)),
    ([1, 4, "s", 0], StreamResponse(type=ControlType.RESENDING, stream_id="s", **V1)),
    ([1, 5, "s", 0, "sub"], StreamResponse(type=ControlType.RESENT, stream_id="s", **SUB)),
    ([1, 6, "s", 0], StreamResponse(type=ControlType.NO_RESEND, stream_id="s", **V1)),
    ([1, 7, "errorMessage"], ErrorResponse(error_message="errorMessage", **V1)),
]
S2: list[tuple[list[Any], ControlFrame]] = [
    (
        [2, 12, "r", "s", 0, REF, "publisher-id", "t"],
        ResendRequest(
            stream_id="s", from_ref=MessageRef(*REF), publisher_id="publisher-id", session_token="t", request_id="r"
        ),
    ),
    ([2, 9, "s", 0, "token"], SubscribeRequest(stream_id="s", session_token="token", request_id=NO_REQUEST_ID)),
    ([2, 9, "r", "s"], SubscribeRequest(stream_id="s", request_id="r")),
]


@pytest.mark.parametrize(("wire", "frame"), S0 + S1 + S2, ids=str)
def test_every_form_of_every_frame_is_read(wire: list[Any], frame: ControlFrame) -> None:
    found = decode_control(json.dumps(wire))
    assert found == frame
    assert found.type == frame.type


def test_the_tables_know_all_fourteen_types() -> None:
    assert list(CONTROL[1]) == list(CONTROL[2]) == list(FRAMES) == list(ControlType)
    assert {frame.type for _, frame in S0} == set(ControlType)


def test_version_1_resends_of_the_libraries_and_of_s1_are_distinguished() -> None:
    frame = decode_control('[1,11,"s",0,"sub",10,"token"]')
    assert frame == ResendRequest(stream_id="s", number_last=10, session_token="token", **SUB)
    assert decode_control('[1,11,"s",0,"sub",10]') == ResendRequest(stream_id="s", number_last=10, **SUB)


@pytest.mark.parametrize("options", [[None] * 4, [True, 5, None, None], [None, 5, 5, None], [False] + [None] * 3])
def test_exactly_one_resend_option_is_set(options: list[Any]) -> None:
    with pytest.raises(StreamrError, match="Invalid resend options!") as refused:
        decode_control(json.dumps([1, 11, "s", 0, "sub", *options]))
    assert refused.value.request_id == "sub"


@pytest.mark.parametrize("partition", [0, "0"])
def test_the_flat_message_of_s1_is_read_and_sent_nested(partition: Any) -> None:
    wire = [*FLAT[:2], partition, *FLAT[3:]]
    message = parse_message(json.dumps(wire))
    assert message.id == MessageID("stream-id", 0, 425354887214, 0, PUBLISHER, "")
    assert message.prev_ref == MessageRef(425354887001, 0)
    assert (message.content, message.signature_type, message.ttl_seconds) == ('{"a":1}', 1, 120)
    assert message.wire == json.dumps(wire).encode()
    assert json.loads(message.encode(30)) == [30, [*ID[:5], ""], REF, 27, '{"a":1}', 1, "0x29"]


def test_a_flat_message_may_be_the_first_of_its_producer() -> None:
    wire = [30, "s", 0, 5, None, None, None, None, None, 27, "{}", 0, ""]
    assert parse_message(json.dumps(wire)) == StreamMessage(MessageID("s", 0, 5), "{}", signature="")


def test_a_partition_that_is_a_string_is_refused() -> None:
    with pytest.raises(StreamrError, match=r"Expected streamPartition to be an integer but was a string \(x\)."):
        parse_message(json.dumps([30, "s", "x", *FLAT[3:]]))


@pytest.mark.parametrize(
    "wire",
    [
        [32, ID, REF, 28, 0, 0, ["requestId", "streamId", "rsaPublicKey", ["keyId"]], 2, "0x29"],
        [32, ID, REF, 28, 0, 0, None, '["requestId","streamId","rsaPublicKey",["keyId"]]', 2, "0x29"],
        [32, ID, REF, 28, 0, 0, None, '["requestId","streamId","rsaPublicKey",["keyId"]]', None, 2, "0x29"],
    ],
)
def test_the_short_messages_of_s2_are_sent_with_all_fields(wire: list[Any]) -> None:
    message = parse_message(json.dumps(wire))
    content = '["requestId","streamId","rsaPublicKey",["keyId"]]'
    assert json.loads(message.encode(32)) == [32, ID, REF, 28, 0, 0, None, content, None, 2, "0x29"]
    assert message.wire == json.dumps(wire).encode()


@pytest.mark.parametrize("kind", range(27, 33))
def test_every_message_type_of_s0_and_s2_passes(kind: int) -> None:
    message = parse_message(json.dumps([*ROW[:3], kind, *ROW[4:]]))
    assert message.message_type == json.loads(message.encode(31))[3] == kind


def test_a_row_of_another_version_is_made_and_of_the_same_is_the_received_text() -> None:
    spaced = json.dumps(ROW).encode()
    message = parse_message(spaced)
    assert message.encode(32) == spaced
    assert json.loads(message.encode(31)) == [31, ID, REF, 27, 0, '{"foo":42}', 2, "0x29c057786Fa"]
    assert json.loads(message.encode(30)) == [30, ID, REF, 27, '{"foo":42}', 2, "0x29c057786Fa"]
    assert {version: len(fields) for version, fields in LAYOUTS.items()} == {30: 7, 31: 8, 32: 11}


@pytest.mark.parametrize("surplus", [[], ["surplus"]])
def test_a_row_with_surplus_fields_or_empty_references_is_encoded_again(surplus: list[str]) -> None:
    wire = [31, ID, [None, None], 27, 0, "{}", 0, None, *surplus]
    assert json.loads(parse_message(json.dumps(wire)).encode(31)) == [31, ID, None, 27, 0, "{}", 0, None]


@pytest.mark.parametrize("frame", ['[2,8,"r",%s,"token"]', '[2,8,"r",%s]', '[1,8,%s,null,"t"]', '[2,0,"", %s]'])
def test_the_text_of_a_message_is_cut_out_of_its_frame(frame: str) -> None:
    row = json.dumps(ROW, separators=(", ", ":")).replace("foo", "f\\u00f6")
    found = decode_control(frame % row)
    assert isinstance(found, PublishRequest | MessageDelivery)
    assert found.message.wire is not None
    assert found.message.wire.strip() == row.encode()


def test_a_message_in_a_frame_with_unusual_spaces_is_encoded_again() -> None:
    found = decode_control(f'[ 2, 8, "r", {json.dumps(ROW)}, "token" ]')
    assert isinstance(found, PublishRequest)
    assert found.message.wire == json.dumps(ROW, separators=(",", ":")).encode()


def test_a_message_may_be_given_as_its_text() -> None:
    found = decode_control(json.dumps([2, 8, "r", json.dumps(ROW), None]))
    assert found == PublishRequest(message=MESSAGE, request_id="r")


def test_a_broadcast_is_written_around_a_row() -> None:
    row = MESSAGE.encode(31)
    for version in (1, 2):
        frame = decode_control(encode_broadcast(version, row))
        assert frame == MessageDelivery(
            type=ControlType.BROADCAST,
            message=MESSAGE,
            version=version,
            request_id=NO_REQUEST_ID if version == 1 else "",
        )
        assert decode_control(encode_unicast(version, 'a"b', row)) == MessageDelivery(
            type=ControlType.UNICAST, message=MESSAGE, version=version, request_id='a"b'
        )
        expected = MessageDelivery(type=ControlType.UNICAST, message=MESSAGE, request_id="é")
        assert encode_unicast(version, "é", row) == encode(expected, version, 31)


@pytest.mark.parametrize(
    ("wire", "request_id"),
    [
        ('[2,99,"r"]', "r"),
        ('[2,9,"r","",0]', "r"),
        ('[2,8,"r",[32]]', "r"),
        ('[2,9,7,"s",0]', ""),
        ("[2,9]", ""),
        ('[9,9,"x"]', ""),
        ('[1,11,"s",0,"sub",-1]', "sub"),
        ('[1,1,"sub",[33]]', "sub"),
        ('[1,9,"",0]', ""),
        ('[1,99,"r"]', ""),
        ('[1,[],"r"]', ""),
        ("[1]", ""),
        ("{}", ""),
        ('[2,9,"r\\u00e9","s",', "ré"),
        (' [ 2 , 9 , "r", nope]', "r"),
        ('[2,9,"r\\x","s",', ""),
        ("nope", ""),
    ],
)
def test_the_request_id_of_a_refused_frame_is_recovered(wire: str, request_id: str) -> None:
    for data in (wire, wire.encode()):
        with pytest.raises(StreamrError) as refused:
            decode_control(data)
        assert refused.value.request_id == request_id


@pytest.mark.parametrize("data", [b"\xff", "\ud800", b"[" * 300 + b"]" * 300, b"", b"NaN"])
def test_invalid_json_is_refused(data: bytes | str) -> None:
    for read in (decode_control, parse_message):
        with pytest.raises(StreamrError, match="Invalid JSON"):
            read(data)


def test_numbers_beyond_the_safe_range_are_refused() -> None:
    assert parse_message(json.dumps([30, ["s", 0, MAX_INTEGER], None, 27, "{}"])).id.timestamp == MAX_INTEGER
    for number in ("9007199254740992", "1e300", "1e400", "18446744073709551616"):
        with pytest.raises(StreamrError, match="Expected timestamp to "):
            parse_message(f'[30,["s",0,{number}],null,27,"{{}}"]')
    assert parse_message('[30,["s",0.0,5e3],null,27.0,"{}"]').id == MessageID("s", 0, 5000)


def test_an_error_repeats_only_the_beginning_of_a_value() -> None:
    with pytest.raises(StreamrError) as refused:
        decode_control(json.dumps([2, 9, "r", ["x" * 10_000], 0]))
    assert refused.value.message == f"Expected streamId to be a string but was a object ({'x' * MAX_QUOTED})."


@pytest.mark.parametrize("key", ['{"a":1}', '["a"]', '["a",5]', "[]", "5"])
def test_a_new_group_key_is_a_pair_of_strings(key: str) -> None:
    with pytest.raises(StreamrError, match="Expected "):
        parse_message(json.dumps([*ROW[:8], key, *ROW[9:]]))


def test_the_old_encryption_with_a_new_key_stays_in_version_31() -> None:
    message = parse_message(json.dumps([31, ID, REF, 27, 3, "abcdef", 0, None]))
    assert [message.is_lossless_in(version) for version in (30, 31, 32)] == [False, True, False]
    with pytest.raises(StreamrError, match="Unsupported encryption type: 3"):
        parse_message(json.dumps([*ROW[:5], 3, *ROW[6:]]))


def test_a_new_group_key_is_known_to_version_32_only() -> None:
    message = parse_message(json.dumps([*ROW[:8], '["id", "key"]', *ROW[9:]]))
    assert [message.is_lossless_in(version) for version in (30, 31, 32)] == [False, False, True]
    assert [MESSAGE.is_lossless_in(version) for version in (30, 31, 32)] == [True, True, True]


def test_version_30_gets_no_encrypted_message_except_the_key_exchange() -> None:
    for encryption in (1, 2):
        message = parse_message(json.dumps([*ROW[:5], encryption, "key", "00ff", *ROW[8:]]))
        assert [message.is_lossless_in(version) for version in (30, 31, 32)] == [False, True, True]
    keys = parse_message(json.dumps([*ROW[:3], 29, 0, 1, None, '["r","s",[]]', *ROW[8:]]))
    assert keys.is_lossless_in(30), "its content can be read"


def test_a_subscription_number_keeps_its_type_in_answers() -> None:
    for sub in (234, 0, "234"):
        frame = decode_control(json.dumps([1, 11, "s", 0, sub, True, None, None, None]))
        assert frame.request_id == sub
        answer = StreamResponse(type=ControlType.RESENT, stream_id="s", request_id=frame.request_id)
        assert json.loads(encode(answer, 1)) == [1, 5, "s", 0, sub]
        assert json.loads(encode(answer, 2)) == [2, 5, str(sub), "s", 0], "version 2 knows only texts"
        assert json.loads(encode_unicast(1, frame.request_id, b"[]")) == [1, 1, sub, []]
        assert json.loads(encode_unicast(2, frame.request_id, b"[]")) == [2, 1, str(sub), []]
    with pytest.raises(StreamrError, match="Expected requestId to be a string"):
        decode_control('[1,11,"s",0,true,true,null,null,null]')
