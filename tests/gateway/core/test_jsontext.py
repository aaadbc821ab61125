from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.jsontext import MAX_DEPTH, SHORT_SIZE, dumps, find_reply_id, is_json, loads, one_line
from gateway.core.nesting import depth, has_more_values


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
def test_valid_json_is_read(text: str | bytes, value: Any) -> None:
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
def test_invalid_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)
    assert isinstance(text, bytes) or not is_json(text)


def test_nesting_is_bounded_and_brackets_in_strings_do_not_nest() -> None:
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 5_000, 1_000_000):
        with pytest.raises(ValueError, match="nested"):
            loads("[" * levels + "]" * levels)
        assert not is_json("[" * levels + "]" * levels)
    assert loads(dumps(["[{" * 10_000]))
    assert loads(dumps([[]] * 1_000))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_written_json_is_read_again(value: Any) -> None:
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
    assert len(deepest) == SHORT_SIZE
    assert loads(deepest) == orjson.loads(deepest)
    with pytest.raises(ValueError, match="nested deeper"):
        loads(f"[{deepest}]")


def by_character(text: str) -> tuple[int, bool]:
    """The deepest nesting of brackets outside strings, and whether a backslash stands outside of them."""
    level = deepest = 0
    in_string = escaped = astray = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            level += 1
            deepest = max(deepest, level)
        elif character in "]}":
            level -= 1
        elif character == "\\":
            astray = True
    return deepest, astray


# What JSON is made of, and what it is not.
marks = st.text(alphabet='[]{}",:\\a1 é', max_size=200)


@given(marks | st.lists(marks).map("".join))
@example('"' * 1001 + "[[")
@example("]]]][[[[" * 20)
@example('["' + "\\" * 7 + '"]' * 9)
@example("[" * 9 + '"]')
def test_depth_equals_that_found_character_by_character(text: str) -> None:
    deepest, astray = by_character(text)
    if not astray:  # else it is no JSON, and is refused for that
        assert depth(text) == deepest
        assert depth(text.encode()) == deepest


@given(values, st.booleans())
def test_depth_of_valid_json(value: Any, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    assert depth(text) == by_character(text)[0]


HOSTILE = [
    "[",
    "]",
    "[]",
    "[],",
    '{"":',
    '"',
    "\\",
    '"[',
    '"[",',
    '{"[":1},',
    '["\\"[\\\\"],',
    "\\u",
    "\\ud800",
    "9",
    "1e999,",
]


@pytest.mark.slow
@pytest.mark.parametrize("piece", HOSTILE)
def test_every_reader_handles_a_mib_of_anything(piece: str) -> None:
    """Each of them took a second or more where it walked, or went over the same text again and again."""
    text = piece * ((1 << 20) // len(piece))
    for said in (text, f'"{text}', f"[{text}", f"[{text}1]"):
        deepest, astray = by_character(said)
        assert astray or depth(said) == deepest
        assert agree(said.encode())


def agree(text: bytes) -> bool:
    """Whether `check` and `loads` say the same of *text*."""
    try:
        value = loads(text)
    except ValueError:
        value = ValueError
    try:
        reply = find_reply_id(text)
    except ValueError:
        return value is ValueError
    said = value.get("inReplyTo") if isinstance(value, dict) else None
    half = any(0xD800 <= ord(each) <= 0xDFFF for each in json.dumps(value, ensure_ascii=False))
    return value is not ValueError and (reply == (said if isinstance(said, str) else None) or (half and reply is None))


MARKS = [*'[]{},:"é', "1", "-0", "1e400", "1E5", "01", "1.", "null", "nul", "true", "NaN", " ", "\n", "\x0b", "\ufeff"]
STRINGS = ['"a"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\\\ud800"', '"\\x"', '"\x01"', '"inReplyTo"', '"\u2028"']
tokens = st.sampled_from(MARKS + STRINGS)


@given(st.lists(tokens).map("".join))
@example('{"inReplyTo":"a","inReplyTo":"\\u0062"}')
@example('{"inReplyTo":"a","inReplyTo":null}')
@example('{"inReplyTo":"\\ud800"}')
@example('{"inReplyTo":"a","b":"\\uD800"}')
@example(' {"inRepl\\u0079To":"x"} ')
@example("9" * 5000)
def test_check_refuses_what_loads_refuses_and_finds_the_parent(text: str) -> None:
    assert agree(text.encode())


@given(st.binary())
def test_check_agrees_about_any_bytes(data: bytes) -> None:
    assert agree(data)


@given(values)
def test_check_accepts_valid_json(value: Any) -> None:
    assert agree(json.dumps({"inReplyTo": value}).encode())


def test_a_lone_surrogate_in_a_string_is_json() -> None:
    assert is_json('"\ud800"')
    assert not is_json("\ud800")


def test_numbers_beyond_a_double_cost_no_python_call_each() -> None:
    """A MiB of them took 180 ms, and whoever sent it held up everybody for that long."""
    calls = 0

    def count(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal calls
        calls += event == "call"

    for number, read in (("1e999", None), ("-1e999", None), ("9" * 400, None), ("9" * 30, 1e30), ("1e308", 1e308)):
        numbers = [number] * 20_000
        text = f'[{",".join(numbers)},{{"a":[1e999]}}]'
        sys.setprofile(count)
        try:
            value = loads(text)
        finally:
            sys.setprofile(None)
        assert value == [read] * 20_000 + [{"a": [None]}]
    assert calls < 200


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (r'"\ud800' + "x" * (1 << 20) + '"', 8),
        (r'"\ud800' + "e1" * (1 << 19) + '"', 14),
        ("[" + ("9" * 4_299 + ",") * 240 + "1]", 6),
    ],
)
def test_what_is_read_slowly_takes_few_times_as_long_as_text_in_the_standard_library(text: str, times: int) -> None:
    """A regular expression looked for long numbers, at 50 ms for a MiB, and each number took a square of its digits.

    They took 14, 24 and 12 times as long, and take 3, 6 to 8 and 1.4 times.
    """
    usual = json.dumps("x" * (1 << 19) + "\\" * (1 << 18))
    assert min(map(work, [partial(loads, text)] * 5)) < times * min(map(work, [partial(json.loads, usual)] * 5))


def work(call: Callable[[], object]) -> float:
    """The CPU time of *call*, in seconds."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


@pytest.mark.parametrize("digits", [308, 309, 310, 499, 500, 501])
@pytest.mark.parametrize("digit", "19")
@pytest.mark.parametrize("sign", ["", "-"])
def test_integers_around_the_bounds_are_read_as_doubles(sign: str, digit: str, digits: int) -> None:
    number = sign + digit * digits
    read = float(number)
    assert loads(f"[{number},1e400]") == [None if read in (float("inf"), float("-inf")) else read, None]


@pytest.mark.parametrize("digits", [4_299, 4_300, 4_301])
@pytest.mark.parametrize("sign", ["", "-"])
def test_the_longest_numbers(sign: str, digits: int) -> None:
    number = sign + "9" * digits
    assert loads(number) is None
    assert loads(f"[{number},{'9' * 5_000}]") == [None, None]


@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.integers(-(1 << 70), 1 << 70).map(str),
    st.sampled_from([r'"\ud800"', "1e400", "9" * 400, "9" * 5_000, "9" * 20]),
)
@example(str(1 << 64), r'"\ud800"')
@example(str(-(1 << 63) - 1), "1e400")
def test_a_number_is_read_the_same_whatever_is_beside_it(number: str, beside: str) -> None:
    (alone,), (value, _) = loads(f"[{number}]"), loads(f"[{number},{beside}]")
    assert (type(value), repr(value)) == (type(alone), repr(alone))


def empty_in(value: Any) -> int:
    """How many arrays and objects in *value* are empty: each may count twice."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 if not inner else sum(map(empty_in, inner))


def values_in(value: Any) -> int:
    """How many values *value* is, with those in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, inner))


@given(values, st.booleans(), st.sampled_from([None, 1, "\t"]), st.integers(0, 50))
def test_many_values_are_detected(value: Any, ascii: bool, indent: int | str | None, most: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).encode(errors="backslashreplace")
    strings = text.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"') // 2
    if values_in(value) > most:
        assert has_more_values(text, most)
    elif strings <= most and values_in(value) + empty_in(value) <= most:
        assert not has_more_values(text, most)


def test_too_many_values_are_refused_before_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[" + "[]," * 100 + "[]]"
    assert len(loads(text, max_values=300)) == 101
    monkeypatch.setattr(orjson, "loads", lambda _text: pytest.fail("values are made"))
    with pytest.raises(ValueError, match="more than 100 values"):
        loads(text, max_values=100)
    with pytest.raises(ValueError, match="more than 100 values"):
        loads(text.encode(), max_values=100)
