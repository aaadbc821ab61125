"""The content of a reply is a JSON value on other protocols, and any JSON value becomes the content of a reply."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapters.sprout.forest.content import decode_content, encode_content
from adapters.sprout.forest.forest import Content
from tests.adapters.sprout.conftest import nodes, pairs

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.text(st.characters(categories=["Cs", "L"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("content"), inner),
    max_leaves=8,
)
PLAIN = st.fixed_dictionaries({"content": JSON}, optional={"inReplyTo": st.sampled_from(["a", "b"])})


@given(JSON | PLAIN, st.sampled_from([None, "a"]))
def test_content_survives_the_round_trip(value: Any, parent: str | None) -> None:
    content = json.dumps(value).encode()
    text, is_json = encode_content(content, parent)
    assert json.loads(decode_content(Content(text), is_json, parent)) == value


@given(st.binary(), st.booleans(), st.sampled_from([1, 2]), st.sampled_from([None, "a"]))
def test_decoded_content_is_json_on_one_line(blob: bytes, is_json: bool, kind: int, parent: str | None) -> None:
    content = decode_content(Content(blob, kind), is_json, parent)
    json.loads(content)
    assert b"\n" not in content


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON | PLAIN)
def test_any_value_becomes_a_node(place: Any, ear: Any, value: Any) -> None:
    message = place.toy().say(value)
    place.settle()
    *_, (_, node, _) = nodes(ear.read())
    is_json = pairs(node).get("json/1") == b"true"
    assert json.loads(decode_content(node.content, is_json, None)) == json.loads(message.content)


@pytest.mark.parametrize("unit", ["[],", "1e999,", '"\\ud800",'])
@pytest.mark.parametrize("name", ["content", "other"])
def test_values_that_are_not_texts_are_not_decoded(unit: str, name: str) -> None:
    """Values of a MiB of lists took tens of milliseconds and of MiBs, to find out that it is too long."""
    content = b'{"%b":[%b]}' % (name.encode(), (unit * 50_000)[:-1].encode())
    tracemalloc.start()
    try:
        assert encode_content(content, None) == (content, True)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b'{"content":"a","inReplyTo":null}', b'{"content":"\\ud800"}', b'{"content":1}'])
def test_values_that_are_not_exactly_texts_are_json(content: bytes) -> None:
    assert encode_content(content, None) == (content, True)
