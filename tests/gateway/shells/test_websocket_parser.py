from __future__ import annotations

import itertools
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame as Framed
from websockets.frames import Opcode
from websockets.protocol import OPEN, SERVER
from websockets.protocol import Protocol as Oracle

from gateway.core.outbox import Close
from gateway.shells.websocket_parser import (
    CLOSE,
    PING,
    TEXT,
    Frame,
    Reader,
    close_frame,
    control_frame,
    truncate_reason,
)

MASK = b"\x01\x80\xfe\x33"


def frame(first: int, payload: bytes, *, size: int | None = None) -> bytes:
    """A client's frame whose first byte is *first*; *size* is what it claims, if not the truth."""
    size = len(payload) if size is None else size
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + MASK + bytes(byte ^ key for byte, key in zip(payload, itertools.cycle(MASK), strict=False))


def read(*pieces: bytes, max_size: int = 1 << 20) -> tuple[list[Frame], Close | None]:
    reader, frames = Reader(max_size), list[Frame]()
    for piece in pieces:
        frames += reader.feed(piece)
        if reader.failure is not None or (frames and frames[-1][0] == CLOSE):
            break
    return frames, reader.failure


def code(*pieces: bytes, max_size: int = 1 << 20) -> int | None:
    failure = read(*pieces, max_size=max_size)[1]
    return failure and failure.code


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 1 << 20])
def test_a_message_of_any_size(size: int) -> None:
    assert read(frame(0x81, b"x" * size)) == ([(TEXT, b"x" * size)], None)


def test_an_oversized_frame_is_refused_by_its_header() -> None:
    assert code(frame(0x81, b"", size=101)[:6], max_size=100) == 1009
    assert code(frame(0x81, b"", size=1 << 63)) == 1009


def test_fragments_become_one_message_with_control_frames_in_between() -> None:
    data = frame(0x01, "é".encode()[:1]) + frame(0x89, b"p") + frame(0x00, b"") + frame(0x80, "é".encode()[1:])
    assert read(data) == ([(PING, b"p"), (TEXT, "é".encode())], None)


def test_fragments_have_the_limit_of_a_message_together() -> None:
    assert code(frame(0x01, b"x" * 60), frame(0x00, b"x" * 40), frame(0x00, b"x"), max_size=100) == 1009
    assert code(frame(0x01, b"x" * 60), frame(0x00, b"x" * 40), frame(0x80, b""), max_size=100) is None


def test_binary_is_text_with_replacement_characters() -> None:
    assert read(frame(0x82, b"a\xffb"))[0] == [(TEXT, "a\ufffdb".encode())]
    assert read(frame(0x02, b"a\xff"), frame(0x80, b"b"))[0] == [(TEXT, "a\ufffdb".encode())]


@pytest.mark.parametrize("pieces", [[frame(0x81, b"\xff")], [frame(0x01, b"a"), frame(0x00, b"\xff")]])
def test_text_that_is_not_utf8_is_refused_at_its_first_bad_frame(pieces: list[bytes]) -> None:
    assert code(*pieces) == 1007


BAD = [b"\xff", b"\xce\xba\xf4\x90", b"\xed\xa0", b"\xe0\x9f", b"\xf0\x8f", b"\xc0", b"a\xc3\x28", b"\xf5"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("padding", [b"", b"x" * 200, b"x" * 70_000], ids=len)
@pytest.mark.parametrize("first", [0x81, 0x01])
def test_text_that_is_not_utf8_is_refused_at_its_first_bad_byte(bad: bytes, padding: bytes, first: int) -> None:
    """Whatever the size of the frame's head, and although more of the frame is to come."""
    head = frame(first, padding + bad + b"y" * 100)[:-100]
    assert code(head[:-1]) is None
    assert code(head[:-1], head[-1:]) == 1007
    assert code(head) == 1007
    assert read(frame(0x81, b"a") + head)[0] == [(TEXT, b"a")]


@pytest.mark.parametrize("bad", BAD)
def test_a_fragment_that_is_not_utf8_is_refused_at_its_first_bad_byte(bad: bytes) -> None:
    """A character may begin in a frame that is whole and go on in one that is not."""
    for cut in range(len(bad)):
        whole, head = frame(0x01, bad[:cut]) + frame(0x89, b"p"), frame(0x80, bad[cut:] + b"y")[:-1]
        assert code(whole, head[:-1]) is None
        assert code(whole, head[:-1], head[-1:]) == code(whole, head) == code(whole + head) == 1007


def test_bytes_of_other_frames_are_not_checked_as_utf_8() -> None:
    assert code(frame(0x82, b"\xff\xff")[:-1]) is None
    assert code(frame(0x02, b"\xff"), frame(0x80, b"\xff\xff")[:-1]) is None
    assert code(frame(0x01, b"\xc3"), frame(0x89, b"\xff\xff")[:-1]) is None
    pieces = frame(0x01, b"\xc3"), frame(0x00, b"\xa9\xc3a")[:7], frame(0x00, b"\xa9\xc3a")[7:-1]
    assert code(*pieces) is None  # the second begins a character that is unfinished


def test_nothing_is_kept_of_a_frame_that_was_refused_before_its_end() -> None:
    reader = Reader()
    assert reader.feed(frame(0x81, b"x" * 5000)[:4000]) == []
    assert reader.held_size == 4000
    assert reader.feed(b"\xff" * 100) == []
    assert reader.failure is not None
    assert reader.held_size == 0


def test_frames_before_a_failure_count() -> None:
    frames, failure = read(frame(0x81, b"a") + frame(0x83, b"b") + frame(0x81, b"c"))
    assert frames == [(TEXT, b"a")]
    assert failure is not None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x81\x00", 1002),  # not masked
        (frame(0xC1, b""), 1002),  # RSV1
        (frame(0x83, b""), 1002),  # opcode
        (frame(0x09, b""), 1002),  # a fragmented ping
        (frame(0x89, b"x" * 126), 1002),
        (frame(0x80, b""), 1002),  # continues nothing
        (frame(0x01, b"") + frame(0x81, b""), 1002),
        (frame(0x88, b"\x03"), 1002),
        (frame(0x88, b"\x03\xed"), 1002),  # 1005 is not for the wire
        (frame(0x88, b"\x03\xe8\xff"), 1007),
        (frame(0x88, b""), None),
        (frame(0x88, b"\x0b\xb8bye"), None),  # 3000
    ],
)
def test_the_rules_of_section_5(data: bytes, expected: int | None) -> None:
    assert code(data) == expected


def test_nothing_is_read_after_a_close() -> None:
    assert read(frame(0x88, b"") + frame(0x81, b"late") + b"\x00\x00") == ([(CLOSE, b"")], None)


def test_a_reason_is_cut_between_characters() -> None:
    assert truncate_reason("é" * 100) == "é" * 61
    assert close_frame(1002, "é" * 100) == control_frame(CLOSE, b"\x03\xea" + "é".encode() * 61)
    assert truncate_reason("\udc80") == "?"


FRAMES = st.builds(
    frame,
    st.sampled_from([0x81, 0x01, 0x80, 0x00, 0x82, 0x02, 0x89, 0x8A, 0x88, 0x83, 0x09, 0xC1]),
    st.one_of(st.binary(max_size=200), st.text(max_size=40).map(str.encode), st.just(b"\x03\xe8")),
)
WHOLE = st.lists(FRAMES, max_size=6).map(b"".join)
STREAMS = st.one_of(WHOLE, st.binary(max_size=60))


def by_oracle(data: bytes) -> tuple[list[Frame], int | None]:
    """What the `websockets` library makes of *data*; joining fragments and UTF-8 are its callers' part."""
    oracle = Oracle(SERVER, state=OPEN)
    oracle.receive_data(data)
    frames: list[Frame] = []
    message, text = b"", False
    for event in oracle.events_received():
        assert isinstance(event, Framed)
        if event.opcode >= Opcode.CLOSE:
            frames.append((event.opcode, bytes(event.data)))
            continue
        if event.opcode is not Opcode.CONT:
            message, text = b"", event.opcode is Opcode.TEXT
        message += event.data
        if event.fin:
            try:
                frames.append(
                    (TEXT, message if text and message.decode() else message.decode(errors="replace").encode())
                )
            except UnicodeDecodeError:
                return frames, 1007
    return frames, oracle.close_sent.code if oracle.parser_exc is not None and oracle.close_sent else None


@settings(max_examples=500)
@given(WHOLE)
def test_the_websockets_library_reads_the_same(data: bytes) -> None:
    frames, failure = read(data)
    others, expected = by_oracle(data)
    if failure is not None and failure.code == 1007:  # found earlier here, in the middle of a message
        assert frames == others[: len(frames)]
    elif frames and frames[-1][0] == CLOSE and expected == 1002:  # a close between fragments is no failure here
        assert frames[:-1] == others
    else:
        assert (frames, failure and failure.code) == (others, expected)


def early(frames: list[Frame], failure: Close | None, all_frames: list[Frame], all_failure: Close | None) -> bool:
    """Whether what was read of the first bytes agrees with what is read of them all."""
    return frames == all_frames[: len(frames)] and (failure is None or failure == all_failure)


@given(STREAMS, st.lists(st.integers(0, 400)))
def test_any_cut_reads_the_same(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    assert read(*(data[a:b] for a, b in itertools.pairwise(edges))) == read(data)
    assert read(*(data[i : i + 1] for i in range(len(data)))) == read(data)


@given(STREAMS, STREAMS, st.integers(0, 400))
def test_later_bytes_change_only_the_time_of_a_failure(data: bytes, more: bytes, cut: int) -> None:
    frames, failure = read(data[:cut])
    everything = read(data + more)
    if frames and frames[-1][0] == CLOSE:
        assert (frames, failure) == everything
    else:
        assert early(frames, failure, *everything)


def begins_a_text(data: bytes) -> bool:
    """Whether *data* with some bytes more is UTF-8; the lowest or the highest always do."""
    for more in [b"\x80" * count for count in range(4)] + [b"\xbf" * count for count in range(1, 4)]:
        with suppress(UnicodeDecodeError):
            (data + more).decode()
            return True
    return False


@settings(max_examples=100)
@given(st.sampled_from([0x81, 0x01]), st.text(max_size=6), st.binary(max_size=4), st.binary(max_size=130))
def test_a_text_fails_at_its_first_invalid_byte(first: int, text: str, bad: bytes, more: bytes) -> None:
    """The oracle is Python's decoder, which is asked for each byte whether anything valid begins like this."""
    payload = text.encode() + bad + more
    start = 6 if len(payload) < 126 else 8
    data = frame(first, payload)
    for end in range(len(payload)):
        expected = None if begins_a_text(payload[:end]) else 1007
        assert code(data[: start + end]) == expected
        assert code(*(data[i : i + 1] for i in range(start + end))) == expected
        if expected:
            return


def test_one_byte_at_a_time_costs_no_more_than_its_size() -> None:
    reader = Reader()
    data = frame(0x01, b"x" * 150_000) + b"".join(frame(0x00, b"y") for _ in range(20_000)) + frame(0x80, b"")
    frames = [found for i in range(len(data)) for found in reader.feed(data[i : i + 1])]
    assert frames == [(TEXT, b"x" * 150_000 + b"y" * 20_000)]
