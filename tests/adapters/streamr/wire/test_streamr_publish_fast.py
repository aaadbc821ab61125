"""The fast decoder of publish requests agrees with the general one."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.streamr.wire.codec import _decode_any, decode_publish_fast
from adapters.streamr.wire.control import PublishRequest

FIRST: list[Any] = [2, 8, "r", [32, ["s", 0, 5, 0, "0xA", "c"], [4, 0], 27, 0, 2, "key", "1", None, 2, "0x1b"], "token"]
UNSIGNED: list[Any] = [2, 8, "r", [32, ["日", 1, 5, 0, "", ""], None, 27, 0, 0, None, "{}", None, 0, None], None]
VARIES = [(2,), (3, 1, 2), (3, 1, 3), (3, 2), (3, 7), (3, 10)]  # id, timestamp, sequence, reference, content, signature
PLACES = [
    *((at,) for at in range(5)), *((3, at) for at in range(11)), *((3, 1, at) for at in range(6)), (3, 2, 0), (3, 2, 1)
]  # fmt: skip

firsts = st.sampled_from([FIRST, UNSIGNED])
texts = st.text('",[]\\r日\ud800 0', max_size=6)
values: st.SearchStrategy[Any] = st.one_of(
    texts,
    st.sampled_from([0, 1, 2, 3, 5, 6, 27, 31, 32, -1, 1.0, 5.0, True, False, None, 2**53 - 1, 2**53, 2**64, 1e30]),
    st.sampled_from(
        ["s", "0xA", "0xa", "c", "key", "r", "token", [], [4, 0], [4, -1], [4.0, 0], [6, 0], [1], [4, 2**53]]
    ),
    st.lists(texts | st.integers(), max_size=3),
    st.dictionaries(texts, texts, max_size=2),
)


def put(frame: list[Any], place: tuple[int, ...], value: Any) -> None:
    for at in place[:-1]:
        if not isinstance(frame, list) or at >= len(frame):
            return
        frame = frame[at]
    if isinstance(frame, list) and place[-1] < len(frame):
        frame[place[-1]] = value


def written(frame: list[Any], *, escaped: bool = False) -> bytes:
    return json.dumps(frame, separators=(",", ":"), ensure_ascii=escaped).encode(errors="replace")


def agrees(wire: bytes) -> bool:
    """Whether *wire* is read; then it is read as otherwise."""
    fast = decode_publish_fast(wire)
    if fast is None:
        return False
    general = _decode_any(wire)
    assert isinstance(general, PublishRequest)
    assert fast == general
    message, known = fast.message, general.message
    assert (message.wire, message.verbatim, message.version) == (known.wire, True, 32)
    assert list(map(type, message.id)) == list(map(type, known.id))
    return True


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(firsts, st.lists(st.tuples(st.sampled_from(PLACES + 2 * VARIES), values), max_size=3), st.booleans(), st.data())
def test_the_fast_decoder_agrees_with_the_general_one(
    first: list[Any], changes: list[tuple[tuple[int, ...], Any]], escaped: bool, data: st.DataObject
) -> None:
    frame = deepcopy(first)
    for place, value in changes:
        put(frame, place, deepcopy(value))
    wire = written(frame, escaped=escaped)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(wire) - 1))
        wire = (
            wire[:at] + data.draw(st.sampled_from([b"", b" ", b'"', b"\\", b"0", b",", b"]", b"[", b"1"])) + wire[at:]
        )
    agrees(wire)


@settings(deadline=None)
@given(
    firsts,
    st.text(max_size=5),
    st.tuples(st.integers(6, 2**53 - 1), st.integers(0, 2**53 - 1)),
    st.none() | st.tuples(st.integers(0, 5), st.integers(0, 2**53 - 1)),
    st.text(min_size=1),
    st.text(),
)
@example(FIRST, '"\\', (2**53 - 1, 2**53 - 1), (5, 9), '"],"\\', '"]')
def test_the_fast_decoder_accepts_fields_that_vary_between_messages(
    first: list[Any], request_id: str, place: tuple[int, int], ref: tuple[int, int] | None, content: str, signature: str
) -> None:
    frame = deepcopy(first)
    given = request_id, *place, ref, content, signature if first is FIRST else None
    for where, value in zip(VARIES, given, strict=True):
        put(frame, where, value)
    escaped = json.dumps(request_id, ensure_ascii=False) != f'"{request_id}"'
    assert agrees(written(frame)) is not escaped


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((2,), 5),
        ((3, 1, 2), -5),
        ((3, 1, 2), 2**53),
        ((3, 1, 2), 10**20),
        ((3, 1, 3), -1),
        ((3, 1, 3), 2**53),
        ((3, 1, 3), 10**20),
        ((3, 2), [5, 0]),
        ((3, 2), [4]),
        ((3, 2), [4, None]),
        ((3, 2), [-1, 0]),
        ((3, 2), "ref"),
        ((3, 2), 5),
        ((3, 7), ""),
        ((3, 7), 1),
        ((3, 7), None),
        ((3, 10), 1),
    ],
)
def test_unusual_fields_are_left_to_the_general_decoder(place: tuple[int, ...], value: Any) -> None:
    frame = deepcopy(FIRST)
    put(frame, place, value)
    assert not agrees(written(frame))


DEEP = b'[2,8,"r",%b%b,null]' % (b"[" * 5_000, b"]" * 5_000)


@pytest.mark.parametrize("wire", [b"", b"5", b"{}", b'[2,8,"r",{},null]', b'[2,8,"r"', b"\xff", b"[2,8,2,8,2]", DEEP])
def test_other_frames_are_left_to_the_general_decoder(wire: bytes) -> None:
    assert not agrees(wire)


def test_frames_with_spaces_are_left_to_the_general_decoder() -> None:
    assert not agrees(json.dumps(FIRST).encode())
    assert agrees(written(UNSIGNED, escaped=True))
    assert agrees(written(UNSIGNED))
