"""base64url agrees with the standard library, and accepts only canonical text."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sprout.wire import base64url


@given(st.binary(max_size=40))
def test_it_is_rfc4648_without_padding(raw: bytes) -> None:
    assert base64url.encode(raw) == base64.urlsafe_b64encode(raw).rstrip(b"=")
    assert base64url.decode(base64url.encode(raw)) == raw


@given(st.text(alphabet="AQgwz019-_+/=\n é", max_size=9).map(str.encode) | st.binary(max_size=9))
def test_only_canonical_text_is_decoded(text: bytes) -> None:
    try:
        raw = base64url.decode(text)
    except ValueError:
        return
    assert base64url.encode(raw) == text


@pytest.mark.parametrize("text", [b"bm9kZQ==", b"bm9kZ+", b"bm9kZR", b"bm9k\n", b"b", b"bm9k ", b"bm9kZQ="])
def test_other_spellings_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        base64url.decode(text)
