"""The tracker protocol: its codec against the libraries' own messages."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.streamr.wire import tracker
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.tracker import TRACKER, TrackerMessage, TrackerType, decode_tracker, encode_tracker
from tests.adapters.streamr.wire.tracker_messages import nearly

VECTORS = Path(__file__).parents[3] / "vectors" / "streamr"
LIBRARIES = ("protocol-5.3.3.json", "protocol-8.4.1.json")
CASES = [case for name in LIBRARIES for case in json.loads((VECTORS / name).read_text())["tracker"]]
S0 = [
    [2, 14, {"streams": [], "started": 0, "rtts": {}}],
    [2, 15, "request-id", "stream-id", 0, ["ws://address1", "ws://address2"], 10],
    [2, 16, "request-id", "stream-id", 0],
    [2, 17, "request-id", "stream-id", 0, ["ws://storage-node-address-1", "ws://storage-node-address-2"]],
]


@pytest.mark.parametrize("wire", [case["wire"] for case in CASES if "wire" in case], ids=lambda wire: f"{wire[:2]}")
def test_messages_of_the_libraries_survive_the_round_trip(wire: Any) -> None:
    message = decode_tracker(json.dumps(wire))
    assert json.loads(encode_tracker(message)) == wire


@pytest.mark.parametrize("case", [case for case in CASES if case.get("result", {}).get("ok")], ids=lambda c: c["name"])
def test_fields_have_the_positions_of_the_libraries(case: Any) -> None:
    message, expected = decode_tracker(json.dumps(case["input"])), case["result"]["value"]
    names = {"streamId": "stream_id", "streamPartition": "stream_partition", "requestId": "request_id"}
    for name in ("version", "requestId", "streamId", "streamPartition", "counter"):
        assert getattr(message, names.get(name, name)) == expected[name]
    assert list(message.nodes) == expected["nodeAddresses"]


@pytest.mark.parametrize("wire", S0, ids=lambda wire: f"{wire[1]}")
def test_examples_of_the_specification_are_read(wire: list[Any]) -> None:
    message = decode_tracker(json.dumps(wire))
    assert message.type == wire[1] - tracker.S0_OFFSET
    assert message.number == wire[1]
    if wire[1] != 14:  # its Status has no requestId
        assert json.loads(encode_tracker(message)) == wire


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("nope", "Invalid JSON"),
        ("{}", "Unsupported version: undefined, message: Supported versions: [1,2]"),
        ("[3,1]", "Unsupported version: 3"),
        ('["2",1]', "Unsupported version: 2"),
        ("[2,7]", "Unsupported type: 7, message: Supported types: [1,2,3,4,5,6,14,15,16,17]"),
        ("[2,18]", "Unsupported type: 18"),
        ("[2,[1]]", "Unsupported type: 1"),
        ("[2,1,7,{}]", "Expected requestId to be a string but was a number (7)."),
        ('[2,1,"r"]', "Expected status to be an object but was r."),
        ('[2,1,"r",null]', "Expected status to not be null."),
        ('[2,3,"r"]', "Expected streamId to not be undefined."),
        ('[2,3,"r","",0]', "Expected streamId to not be an empty string."),
        ('[2,3,"r","s",-1]', "Expected streamPartition to not be negative (-1)."),
        ('[2,2,"r","s",0,"x",1]', "Expected nodeAddresses to be an array but was a string (x)."),
        ('[2,2,"r","s",0,[7],1]', "Expected nodeAddresses[0] to be a string but was a number (7)."),
        ('[2,2,"r","s",0,[]]', "Expected counter to not be undefined."),
        ('[2,5,"r",{},"","offer",{}]', "Expected targetNode to not be an empty string."),
    ],
)
def test_an_invalid_message_is_refused_with_its_field(wire: str, text: str) -> None:
    with pytest.raises(StreamrError) as refused:
        decode_tracker(wire)
    assert refused.value.message.startswith(text)
    assert refused.value.request_id == ("r" if '"r"' in wire else "")


def test_a_list_of_nodes_is_bounded() -> None:
    with pytest.raises(StreamrError, match="at most 1000"):
        decode_tracker(json.dumps([2, 4, "r", "s", 0, ["a"] * (tracker.MAX_NODES + 1)]))


@given(st.binary() | st.text())
def test_any_bytes_are_a_message_or_refused(data: bytes | str) -> None:
    with suppress(StreamrError):
        decode_tracker(data)


@given(nearly)
def test_any_array_is_a_message_that_can_be_written_or_refused(parts: tuple[Any, Any, list[Any]]) -> None:
    version, kind, rest = parts
    with suppress(StreamrError):
        message = decode_tracker(json.dumps([version, kind, *rest]))
        assert decode_tracker(encode_tracker(message)) == message


def test_every_type_has_its_fields() -> None:
    assert set(TRACKER) == set(TrackerType)
    assert all(hasattr(TrackerMessage(type=TrackerType.STATUS), attribute) for attribute, _ in tracker.FIELDS.values())
