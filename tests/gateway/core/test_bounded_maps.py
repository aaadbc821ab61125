"""A bounded map equals a list of pairs that is cut at its beginning."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.bounded_maps import BoundedMap, SizedMap

LIMIT, MAX_SIZE = 4, 10

keys = st.integers(0, 7)
values = st.integers(1, MAX_SIZE + 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), keys, values),
        st.tuples(st.sampled_from(["use", "get", "pop", "first", "clear"]), keys, values),
        st.tuples(st.just("while"), keys, values),
    ),
    max_size=60,
)


class Model:
    """The same, as simple as can be: pairs, the oldest first. Values are their own sizes."""

    def __init__(self, max_size: int) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.forgotten: list[tuple[int, int]] = []
        self.max_size = max_size

    def play(self, step: str, key: int, value: int) -> None:
        found = [pair for pair in self.pairs if pair[0] == key]
        if step in ("set", "use", "pop"):
            self.pairs = [pair for pair in self.pairs if pair[0] != key]
        if step == "set" and value <= self.max_size:
            self.pairs.append((key, value))
        elif step == "use":
            self.pairs += found
        elif step == "clear":
            self.pairs = []
        elif step == "first":
            self._drop(1)
        elif step == "while":
            self._drop(len(list(takewhile(lambda pair: pair[1] >= value, self.pairs))))
        while len(self.pairs) > LIMIT or sum(size for _, size in self.pairs) > self.max_size:
            self._drop(1)

    def _drop(self, count: int) -> None:
        self.forgotten += self.pairs[:count]
        self.pairs = self.pairs[count:]


def play(map: BoundedMap[int, int], step: str, key: int, value: int) -> None:
    match step:
        case "set":
            map[key] = value
        case "use":
            assert map.get(key) == map.touch(key)
        case "get":
            assert (map.get(key) is not None) == (key in map)
        case "pop":
            assert map.get(key) == map.pop(key)
        case "first" if map:
            map.drop_oldest()
        case "while":
            map.drop_while(lambda each: each >= value)
        case "clear":
            map.clear()


def bounded(forget: Callable[[int, int], None]) -> BoundedMap[int, int]:
    return BoundedMap(LIMIT, forget)


def sized(forget: Callable[[int, int], None]) -> SizedMap[int, int]:
    return SizedMap(MAX_SIZE, lambda value: value, LIMIT, forget)


@pytest.mark.parametrize(("make", "max_size"), [(bounded, 1 << 62), (sized, MAX_SIZE)])
@given(program=steps)
def test_a_map_keeps_the_newest_entries_within_its_bounds(make: Any, max_size: int, program: Any) -> None:
    forgotten: list[tuple[int, int]] = []
    map, model = make(lambda key, value: forgotten.append((key, value))), Model(max_size)
    for step in program:
        play(map, *step)
        model.play(*step)
        assert [(key, map.get(key)) for key in map] == list(map.items()) == model.pairs
        assert len(map) == len(model.pairs)
        assert forgotten == model.forgotten
        assert getattr(map, "size", None) in (None, sum(size for _, size in model.pairs))


@pytest.mark.parametrize("make", [bounded, sized])
def test_nothing_can_be_dropped_from_an_empty_map(make: Any) -> None:
    map = make(pytest.fail)
    assert map.pop(1) is map.touch(1) is map.get(1) is None
    with pytest.raises(KeyError):
        map.drop_oldest()
    assert getattr(map, "size", 0) == 0
