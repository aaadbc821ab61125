"""The line protocol is read and written, however the bytes are split and whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sprout.wire import base64url, codec, parser
from adapters.sprout.wire.codec import (
    MAX_BODY,
    MAX_LINE,
    MAX_NODES,
    NO_ID,
    Ancestry,
    Announce,
    Frame,
    LeavesOf,
    List,
    Query,
    Response,
    Status,
    StatusCode,
    Subscribe,
    Unsubscribe,
    Version,
)
from adapters.sprout.wire.parser import Parser
from gateway.core.errors import ProtocolError
from tests.adapters.sprout.wire.parsing import NULL, A, B, Refused, announce, answers, outcomes, typed

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
quantities = st.integers(0, codec.MAX_QUANTITY)
node_ids = st.binary(min_size=32, max_size=32).map(lambda digest: "SHA512_B32__" + base64url.encode(digest).decode())
node_lines = st.builds(codec.node_line, node_ids | st.just(NULL), st.binary(min_size=1, max_size=80))
answered_lines = node_lines.map(lambda node: node._replace(answered=True))
FRAMES = {
    Version: st.builds(Version, int64, st.tuples(st.just(0), st.integers(0, 10**9))),
    List: st.builds(List, int64, st.integers(0, 255), quantities),
    Query: st.builds(Query, int64, st.lists(node_ids, max_size=4).map(tuple)),
    Ancestry: st.builds(Ancestry, int64, node_ids, quantities),
    LeavesOf: st.builds(LeavesOf, int64, node_ids, quantities),
    Subscribe: st.builds(Subscribe, int64, node_ids),
    Unsubscribe: st.builds(Unsubscribe, int64, node_ids),
    Announce: st.builds(Announce, int64, st.lists(node_lines, max_size=4).map(tuple), st.just(()), st.just(0)),
    Response: st.builds(Response, int64, st.lists(answered_lines, max_size=4).map(tuple), st.just(()), st.just(())),
    Status: st.builds(Status, int64, st.integers(0, 9)),
}
frames: st.SearchStrategy[Frame] = st.one_of(*FRAMES.values())

# Bytes that look like Sprout and mostly are not.
words = st.sampled_from(
    [*codec.VERBS, b"", b"frob", b"0", b"1", b"-1", b"2", b"99999999999", b"0.0", b"1.0", A.encode()]
)
odd_lines = st.lists(words, max_size=5).map(b" ".join)
odd_text = st.lists(odd_lines | st.binary(max_size=20), max_size=12).map(b"\n".join)


def test_every_verb_has_a_strategy_here() -> None:
    assert {verb.frame for verb in codec.VERBS.values()} == FRAMES.keys()


@given(frames)
def test_reading_is_the_inverse_of_writing(frame: Frame) -> None:
    assert typed(outcomes([codec.encode(frame)])) == typed([frame])


@given(st.lists(frames.map(codec.encode) | odd_text.map(lambda text: text + b"\n"), max_size=4), st.data())
def test_any_cut_of_the_bytes_gives_the_same(parts: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    chunks = [wire[start:end] for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    whole = typed(outcomes([wire]))
    assert typed(outcomes(chunks)) == whole
    assert typed(outcomes(wire[i : i + 1] for i in range(len(wire)))) == whole


USUAL_HEADERS = [
    b"announce %b %b" % (id, count) for id in (b"0", b"17", b"9" * 18, b"9" * 19) for count in (b"1", b"2")
]
USUAL_NODES = [
    *(b"%b %b" % (id.encode(), text) for id in (A, NULL) for text in (b"", b"AAEC", b"AA", b"AAE=", b"A A", b"AAF")),
    f"{A}  AAEC".encode(),
    f"{A} AAEC\r".encode(),
    f" {A} AAEC".encode(),
    f"{A}! AAEC".encode(),
    f"{A[:-1]} AAEC".encode(),
    f"{A} ".encode() + b"A" * (MAX_LINE // 4 * 4 - len(A) - 4),
    f"{A} ".encode() + b"A" * (MAX_LINE // 4 * 4),
    b"status 4 0",
]


@pytest.mark.parametrize("before", [b"", b"announce x 1\n", b"frobnicate 1\n", b"announce 3 1\n", b"response 3 1\n"])
@pytest.mark.parametrize("header", USUAL_HEADERS)
def test_looking_ahead_agrees_with_reading_on(before: bytes, header: bytes) -> None:
    wires = [b"%b%b\n%b\nodd\nversion 1 0.0\n" % (before, header, node) for node in USUAL_NODES]
    usual = [typed(outcomes([wire])) for wire in wires]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "read_single_announce", lambda _header, _line: None)
        assert [typed(outcomes([wire])) for wire in wires] == usual


@given(odd_text | st.binary())
def test_any_bytes_end_in_frames_or_documented_errors(wire: bytes) -> None:
    outcomes([wire])


@given(odd_text, frames)
def test_a_message_is_found_again_behind_any_lines(noise: bytes, frame: Frame) -> None:
    assert typed(outcomes([noise, b"\n", codec.encode(frame)]))[-1:] == typed([frame])


@pytest.mark.parametrize(
    ("wire", "frame"),
    [
        (b"version 1 0.0\n", Version(1, (0, 0))),
        (b"version 1 00.07\n", Version(1, (0, 7))),
        (b"list 5 1 10\n", List(5, 1, 10)),
        (f"ancestry 44 {A} 3\n".encode(), Ancestry(44, A, 3)),
        (f"leaves_of 101 {A} 45\n".encode(), LeavesOf(101, A, 45)),
        (f"subscribe 20 {A}\n".encode(), Subscribe(20, A)),
        (f"unsubscribe 110 {A}\n".encode(), Unsubscribe(110, A)),
        (f"query 27 2\n{A}\n{B}\n".encode(), Query(27, (A, B))),
        (b"query 27 0\n", Query(27, ())),
        (b"announce 1 0\n", Announce(1, ())),
        (b"status 44 4\n", Status(44, StatusCode.UNKNOWN_NODE)),
        (f"query 1 1\r\n{A}\r\n".encode(), Query(1, (A,))),
        (b"  list \t 5\t1   10 \n", List(5, 1, 10)),
        (b"status +4 0\n", Status(4, 0)),
        (b"status 010 0\n", Status(10, 0)),
        (b"status -3 0\n", Status(-3, 0)),
        (f"query 1 1\n{NULL}\n".encode(), Query(1, (NULL,))),
        (b"query 1 1\nSHA512_B32__AAAA\n", Query(1, ("SHA512_B32__AAAA",))),
    ],
)
def test_examples_of_the_specification_and_lexing_of_the_reference(wire: bytes, frame: Frame) -> None:
    assert typed(outcomes([wire])) == typed([frame])


@pytest.mark.parametrize(
    "wire",
    [
        b"list 1 1 -1\n",
        b"query 1 -1\n",
        f"leaves_of 1 {A} -1\n".encode(),
        b"announce 1 -1\n",
        b"list 1 1 99999999999\n",
    ],
)
def test_the_lines_that_kill_the_reference_relay_get_a_status(wire: bytes) -> None:
    assert answers(wire + b"version 2 0.0\n") == [(1, StatusCode.MALFORMED), (2, StatusCode.OK)]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"", (NO_ID, 1)),
        (b"frobnicate", (NO_ID, 1)),
        (b"frobnicate 7 x", (7, 1)),
        (b"VERSION 7 0.0", (7, 1)),
        (b"version 7 0.0 extra", (7, 1)),
        (b"version 7", (7, 1)),
        (b"version", (NO_ID, 1)),
        (b"version 7 0", (7, 1)),
        (b"version 7 0.0.1", (7, 1)),
        (b"version 7 1.0", (7, StatusCode.PROTOCOL_TOO_NEW)),
        (b"version 7 -1.0", (7, StatusCode.PROTOCOL_TOO_OLD)),
        (b"version 18446744073709551616 0.0", (NO_ID, 1)),
        (b"version " + b"9" * 5000 + b" 0.0", (NO_ID, 1)),
        (b"version 0x10 0.0", (NO_ID, 1)),
        (b"version 1_0 0.0", (NO_ID, 1)),
        (b"list 7 256 1", (7, 1)),
        (b"subscribe 7 garbage", (7, 1)),
        (b"ancestry 7 SHA512_B32__../../etc/passwd 1", (7, 1)),
        (f"query 7 1 {A}".encode(), (7, 1)),
        (b"announce 7 %d" % (codec.MAX_ANNOUNCED + 1), (7, 1)),
        (b"query 7 %d" % (MAX_NODES + 1), (7, 1)),
        (b"query 7 1\nSHA512_B32__../../etc/passwd", (7, 1)),
        (b"query 7 2\n" + A.encode(), (7, 1)),  # the next header comes instead of the second id
        (b"status x 0", (NO_ID, 1)),
        (b"status 7 x", (NO_ID, 1)),  # 7 is one of our ids: an answer under it could be taken for another
        (b"response 7 99999", (NO_ID, 1)),
        (b"response 7 1", (NO_ID, 1)),
    ],
)
def test_a_bad_line_is_answered_and_the_connection_lives(line: bytes, answer: tuple[int, int]) -> None:
    assert answers(line + b"\nversion 8 0.0\n") == [answer, (8, 0)]


def test_a_body_with_an_excessive_count_is_refused_and_skipped() -> None:
    body = b"".join(codec.node_line(A, b"node").line + b"\n" for _ in range(3)) + b"\nwhatever\n"
    assert answers(b"announce 1 99999999999\n" + body + b"version 2 0.0\n") == [(1, 1), (2, 0)]


def test_an_unreadable_line_is_reported_beside_the_nodes() -> None:
    good = codec.node_line(A, b"node")
    lines = [
        b"%b bm9kZQ==" % A.encode(),
        b"%b bm9kZ+" % A.encode(),
        A.encode(),
        b"x y z",
        b"garbage bm9kZQ",
        b"",
        good.line,
    ]
    (frame,) = outcomes([announce(lines)])
    assert isinstance(frame, Announce)
    assert frame.nodes == (good,)
    assert len(frame.unreadable) == 6


def test_a_node_line_can_be_passed_on_as_it_came() -> None:
    line = codec.node_line(A, b"some node")
    (frame,) = outcomes([b"announce 1 1\n  %b \t%b\r\n" % tuple(line.line.split())])
    assert isinstance(frame, Announce)
    assert frame.nodes == (line,)
    assert (
        codec.encode_announce(9, line.line) == codec.encode(Announce(9, (line,))) == b"announce 9 1\n%b\n" % line.line
    )
    assert codec.encode_response(9, [line.line]) == codec.encode(Response(9, (line,)))


def test_a_line_may_be_as_long_as_the_bound_and_no_longer() -> None:
    whole = b"x" * MAX_LINE
    assert outcomes([whole + b"\n"]) == outcomes([whole, b"\n"]) == [Refused(NO_ID, 1)]
    for chunks in ([whole + b"x\n"], [whole + b"x"], [b"version 1 0.0\n" + whole, b"x", b"x"]):
        *_, end = outcomes(chunks)
        assert isinstance(end, str)
        assert "a line of more than" in end


def test_lost_framing_stays_lost() -> None:
    reader = Parser()
    reader.feed(b"x" * (MAX_LINE + 1) + b"\nversion 1 0.0\n")
    for _ in range(2):
        with pytest.raises(ProtocolError):
            reader.next_frame()


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PRI", "announce", "version"])
@pytest.mark.parametrize("end", ["\r\n", "\n", " \r\n"])
def test_an_http_request_ends_the_connection(method: str, end: str) -> None:
    good = codec.node_line(A, b"node").line
    for before in (b"", b"announce 1 99999999999\nskipped\n"):
        reader = Parser()
        request = f"{method} /any HTTP/1.1{end}Host: localhost{end}Content-Type: text/plain{end}{end}".encode()
        reader.feed(before + request + b"announce 1 1\n" + good + b"\n")
        if before:
            with pytest.raises(codec.SproutError):
                reader.next_frame()
        for _ in range(2):
            with pytest.raises(ProtocolError, match="HTTP"):
                reader.next_frame()


def test_a_reply_as_large_as_arbor_allows_fits_on_a_line() -> None:
    largest = 477 + 65_535 + 65_535 + 4_096  # content and metadata, and a signature by a far larger key
    assert len(codec.node_line(A, bytes(largest)).line) <= MAX_LINE


def test_a_body_over_its_bound_keeps_the_nodes_before_it() -> None:
    line = codec.node_line(A, bytes(65_000)).line
    count = MAX_BODY // len(line) + 3
    response = announce([line] * count).replace(b"announce", b"response", 1)
    frame, after = outcomes([response, b"version 2 0.0\n"])
    assert isinstance(frame, Response)
    assert frame.cut == (A,) * (count - len(frame.nodes))
    assert not frame.unreadable
    assert sum(len(node.line) for node in frame.nodes) <= MAX_BODY
    assert after == Version(2)


@pytest.mark.parametrize("size", [40, 65_000])
def test_a_long_announce_comes_in_parts(size: int) -> None:
    nodes = [codec.node_line(A, bytes([n % 256, *bytes(size)])) for n in range(600)]
    said: list[Any] = outcomes([announce([node.line for node in nodes]), b"version 2 0.0\n"])
    *parts, after = said
    assert all(isinstance(part, Announce) for part in parts)
    assert [node for part in parts for node in part.nodes] == nodes
    left = 600
    for part in parts:
        left -= len(part.nodes)
        assert part.more == left
        assert len(part.nodes) <= codec.MAX_PART
        assert sum(len(node.line) for node in part.nodes) <= codec.MAX_PART_BYTES + MAX_LINE
    assert after == Version(2)


@pytest.mark.parametrize("wire", [b"vers", b"announce 1 1\n", b"query 1 2\n" + A.encode() + b"\n"])
def test_an_end_inside_a_message_is_reported(wire: bytes) -> None:
    reader = Parser()
    reader.feed(wire)
    assert reader.next_frame() is None
    assert reader.in_message


def test_an_end_between_messages_is_fine() -> None:
    reader = Parser()
    reader.feed(b"status 1 0\n")
    reader.next_frame()
    assert not reader.in_message


@pytest.mark.parametrize(
    ("data", "reads"),
    [
        (b"list 1 2 9\n", True),
        (b"query 1 1\nSHA512_B32__abc\nsubscribe 2 SHA512_B32__abc\n", True),
        (b"list 1 2 9", False),
        (b"", False),
        (b"announce 1 1\nID NODE\n", False),
        (b"list 1 2 9\nannounce 1 1\nID NODE\n", False),
        (b"list 1 2 9\n \tannounce 1 1\n", False),
        (b"response 1 0\n", False),
        (b"status 1 0\n", False),
    ],
)
def test_only_reads_accepts_complete_queries_and_subscriptions(data: bytes, reads: bool) -> None:
    assert codec.only_reads(data) == reads
