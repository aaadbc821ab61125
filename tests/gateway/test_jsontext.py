from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jsontext import MAX_DEPTH, SHORT, dumps, is_json, loads, one_line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (b'{"a":[1,2.5,"x",null,true]}', {"a": [1, 2.5, "x", None, True]}),
        ("1e400", None),
        ("[-1e999]", [None]),
        (r'"\ud800"', "\ud800"),
        ('"\u00e9"'.encode(), "é"),
    ],
)
def test_what_json_allows_is_read(text: str | bytes, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nope",
        "{'a':1}",
        "NaN",
        "[Infinity]",
        "[1,]",
        "\ufeff1",
        "01",
        '"\t"',
        "1 2",
        b"\xff",
        b'"\xff"',
        "1" * 5000 + "e",
    ],
)
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)
    assert isinstance(text, bytes) or not is_json(text)


def test_nesting_is_bounded_and_brackets_in_strings_do_not_nest() -> None:
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5_000, 1_000_000):
        with pytest.raises(ValueError, match="nested"):
            loads("[" * depth + "]" * depth)
        assert not is_json("[" * depth + "]" * depth)
    assert loads(dumps(["[{" * 10_000]))
    assert loads(dumps([[]] * 1_000))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert json.loads(dumps(value)) == value


@given(st.binary())
def test_any_bytes_give_a_value_or_a_value_error(data: bytes) -> None:
    try:
        loads(data)
    except ValueError:
        return
    loads(one_line(data))


@given(values, st.sampled_from([None, 1, "\t"]))
def test_one_line_keeps_the_value(value: Any, indent: int | str | None) -> None:
    text = json.dumps(value, indent=indent).replace("\n", "\r\n").encode()
    assert b"\n" not in one_line(text)
    assert json.loads(one_line(text)) == value


def test_no_text_is_short_and_nested_too_deeply() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert len(deepest) == SHORT
    assert loads(deepest) == orjson.loads(deepest)
    with pytest.raises(ValueError, match="nested deeper"):
        loads(f"[{deepest}]")
