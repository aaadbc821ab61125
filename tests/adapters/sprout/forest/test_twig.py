"""TWIG is encoded and decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.sprout.forest import twig
from adapters.sprout.forest.twig import TwigError

names = st.binary(min_size=1, max_size=8).map(lambda raw: raw.replace(b"\0", b"/").decode("utf-8", "surrogateescape"))
keys = st.builds("{}/{}".format, names, st.integers(0, (1 << 64) - 1))
values = st.binary(max_size=8).map(lambda raw: raw.replace(b"\0", b"."))


@given(st.dictionaries(keys, values, max_size=5))
def test_reading_is_the_inverse_of_writing(pairs: dict[str, bytes]) -> None:
    assert twig.decode(twig.encode(pairs)) == pairs
    assert twig.encode(dict(reversed(pairs.items()))) == twig.encode(pairs)


@given(st.binary() | st.lists(keys.map(lambda key: key.encode("utf-8", "surrogateescape")) | values).map(b"\0".join))
def test_any_bytes_end_in_pairs_or_the_error(blob: bytes) -> None:
    try:
        pairs = twig.decode(blob)
    except TwigError:
        return
    assert twig.decode(twig.encode(pairs)) == pairs


@pytest.mark.parametrize(
    ("blob", "pairs"),
    [
        (b"", {}),
        (b"a/0\0", {"a/0": b""}),
        (b"heres/one/with/slashes/9\0x\0 /1\0y", {"heres/one/with/slashes/9": b"x", " /1": b"y"}),
        (b"a/1\0x\0a/01\0y", {"a/1": b"y"}),
        (b"//1\0x", {"//1": b"x"}),
    ],
)
def test_examples(blob: bytes, pairs: dict[str, bytes]) -> None:
    assert twig.decode(blob) == pairs


@pytest.mark.parametrize(
    "blob",
    [
        b"\0",
        b"a/1",
        b"a/1\0x\0",
        b"a\0x",
        b"/1\0x",
        b"a/\0x",
        b"a/x\0x",
        b"a/-1\0x",
        b"a/1x\0x",
        b"a/ 1\0x",
        b"a/18446744073709551616\0x",
    ],
)
def test_invalid_twig_is_refused(blob: bytes) -> None:
    with pytest.raises(TwigError):
        twig.decode(blob)


@pytest.mark.parametrize(
    "pairs", [{"a/1": b"\0"}, {"a": b""}, {"/1": b""}, {"a\0/1": b""}, {"a/01": b""}, {"\ud800/1": b""}]
)
def test_values_that_twig_cannot_express_are_not_encoded(pairs: dict[str, bytes]) -> None:
    with pytest.raises(TwigError):
        twig.encode(pairs)
