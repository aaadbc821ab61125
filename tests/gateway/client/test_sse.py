"""Server-sent events are parsed, however their bytes are split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.client.sse import Event, EventReader

STREAM = (
    b": a comment\r\n\r\nevent: welcome\ndata: {}\n\n"
    b"id: 7\nevent: message\ndata: one\ndata:two\r\n\r\n"
    b"data: no line break: \xe2\x80\xa8 \xc2\x85 \x0b\r\r"
    b"event: nothing\n\ndata\n\nid\ndata: last\n\n"
)
EVENTS = [
    Event("welcome", "{}", None),
    Event("message", "one\ntwo", "7"),
    Event("message", "no line break: \u2028 \x85 \x0b", "7"),
    Event("message", "", "7"),
    Event("message", "last", ""),
]


def test_a_stream_is_its_events() -> None:
    assert EventReader().receive_data(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    reader = EventReader()
    places = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[begin:end] for begin, end in pairwise(places)]
    assert [event for part in parts for event in reader.receive_data(part)] == EVENTS


@given(st.binary())
def test_any_bytes_are_read(data: bytes) -> None:
    EventReader().receive_data(data)


def test_the_last_comment_is_kept() -> None:
    reader = EventReader()
    assert reader.receive_data(b": ping\n\ndata: x\n\n\n: too slow\n\n") == [Event("message", "x", None)]
    assert reader.comment == "too slow"


def test_an_unfinished_event_is_not_returned() -> None:
    reader = EventReader()
    assert reader.receive_data(b"data: half") == []
    assert reader.receive_data(b"\n") == []
    assert reader.receive_data(b"\n") == [Event("message", "half", None)]
