"""Frames of one MiB with hundreds of thousands of values are refused before any value is made."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from adapters.streamr.wire.codec import decode_control, decode_publish_fast
from adapters.streamr.wire.control import PublishRequest
from adapters.streamr.wire.errors import StreamrError
from adapters.streamr.wire.message import decode_message
from adapters.streamr.wire.network import decode_network
from adapters.streamr.wire.tracker import decode_tracker
from gateway.core.jsontext import MAX_VALUES

ARRAYS = b"[" + b"[]," * 300_000 + b"[]]"
FIELDS = b"{" + b",".join(b'"%d":1' % n for n in range(90_000)) + b"}"
SAID = json.dumps([32, ["s", 0, 1, 0, "", ""], None, 27, 0, 0, None, "1", None, 0, None], separators=(",", ":"))


@contextmanager
def no_values(text: bytes | str) -> Iterator[None]:
    """Fails where more memory is taken meanwhile than copies of *text* need."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 5 * len(text)
    finally:
        tracemalloc.stop()


# fmt: off
READERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "control":        (decode_control, b"%b"),
    "usual":          (decode_control, b'[2,8,"p",%b,null]'),
    "fast":           (decode_publish_fast, b'[2,8,"p",[32,%b],null]'),
    "message":        (decode_control, b"[2,8,[],%b,null]"),
    "tracker":        (decode_tracker, b'[2,1,"r",%b]'),
    "network":        (decode_network, b'["4.4.3",0,"n",%b]'),
    "network object": (decode_network, b'{"version":"5.0.0","code":0,"payload":%b}'),
}
# fmt: on


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("value", [ARRAYS, FIELDS, ARRAYS[:-1]], ids=["arrays", "fields", "unclosed"])
def test_no_reader_makes_many_values(name: str, value: bytes) -> None:
    read, form = READERS[name]
    wire = form % value
    with no_values(wire):
        if read is decode_publish_fast:
            assert read(wire) is None
        else:
            with pytest.raises(StreamrError, match=r"more than [0-9,]+ values"):
                read(wire)


def test_the_limit_of_values_holds_for_a_message_in_a_string(broker: Any) -> None:
    session = broker.open()
    (answer,) = broker.ask(session, [2, 8, "p", ARRAYS.decode(), None])
    assert answer[:3] == [2, 7, "p"]
    assert f"more than {MAX_VALUES:,} values" in answer[3]


@pytest.mark.parametrize("content", [b'{"a":[1,"b"]},' * 60_000, b'\\"\\\\,' * 200_000])
def test_a_content_may_be_of_any_kind(content: bytes) -> None:
    """It is a text, whatever it says."""
    text = json.dumps("[" + content.decode() + "1]", separators=(",", ":"))
    wire = b'[2,8,"p",%b,null]' % SAID.replace('"1"', text).encode()
    frame = decode_control(wire)
    assert isinstance(frame, PublishRequest)
    assert len(frame.message.content) > 800_000


def test_a_status_has_room_for_all_partitions_that_a_node_may_report() -> None:
    nodes = [f"0x{n:040x}" for n in range(8)]
    part = {"inboundNodes": nodes, "outboundNodes": nodes, "counter": 1}
    status = {"streams": {f"stream-{n}::0": part for n in range(1_000)}}
    assert decode_tracker(json.dumps([2, 1, "r", status]).encode()).status == status


@pytest.mark.parametrize("content", ["[" + "[]," * 300_000, '{"a":1,' * 100_000])
def test_invalid_json_content_is_refused_without_making_values(content: str) -> None:
    message = decode_message([32, ["s", 0, 1, 0, "", ""], None, 27, 0, 0, None, content, None, 0, None])
    with (
        no_values(content),
        pytest.raises(StreamrError, match=r"Invalid JSON in stream s: .* while parsing"),
    ):
        message.check_content()
