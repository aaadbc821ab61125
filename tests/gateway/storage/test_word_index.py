"""The search index of words follows the message index, and accepts no syntax from users."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import SearchRefused, SearchTooLong
from gateway.core.message import MessageIds
from gateway.storage import word_index
from gateway.storage.index import Index
from gateway.storage.log import SealPolicy
from gateway.storage.segments import Segments
from gateway.storage.word_index import Search, expression_of, search, text_of

BEYOND = 1 << 60


def indexed(data: Path, **options: Any) -> Index:
    """An index with words of the log in *data*, made from it; nothing else has it open."""
    index = Index(data / "words.sqlite", Segments(data / "log"), MessageIds(1), **options)
    index.catch_up()
    return index


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes for a search, however busy the machine is."""
    monkeypatch.setattr(word_index, "monotonic", lambda: 0.0)


@pytest.fixture
def find(core: Any, tmp_path: Path) -> Iterator[Callable[..., list[int]]]:
    made: list[Index] = []

    def ask(words: str, channel: str = "lobby", limit: int = 100, **more: Any) -> list[int]:
        if not made:
            core.settle()
            made.append(indexed(tmp_path / "data", search=True))
        asked = Search(channel, expression_of(words), **({"after": 0, "before": BEYOND} | more))
        return [seq for seq, _ in search(made[0].path, asked, limit)]

    yield ask
    for index in made:
        index.close()


def test_text_of_collects_the_strings_of_a_content() -> None:
    assert text_of(b'{"a": "one", "b": [1, null, "two", {"c": "three"}]}') == "one\ntwo\nthree"
    assert text_of(b'"ab"') == "ab"
    assert text_of(b"[1, true]") == ""
    assert text_of(b'"' + b"x" * word_index.MAX_INDEXED + b'"') == ""


def test_words_phrases_and_prefixes_are_found_in_one_channel(core: Any, find: Callable[..., list[int]]) -> None:
    said = [core.say(text.encode()).seq for text in (
        '"The quick brown fox"', '{"text": "a brown caf\u00e9, quickly"}', '["fox"]', '"foxes"')]  # fmt: skip
    core.say(b'"quick fox"', channel="other")
    assert find("QUICK") == [said[0]]
    assert find("quick*") == said[:2]
    assert find("cafe") == [said[1]]
    assert find("brown fox") == [said[0]]
    assert find('"fox brown"') == []
    assert find("fox*") == [said[0], said[2], said[3]]
    assert find("fox*", newest_first=True, limit=2) == [said[3], said[2]]
    assert find("fox*", after=said[0], before=said[3]) == [said[2]]
    assert find("text") == [], "names of members are no text"
    assert len(find("quick", channel="other")) == 1


@pytest.mark.parametrize("words", ["", "   ", "...", '""', "a\x00b", "a\nb", "x" * 300, "a " * 17])
def test_invalid_searches_are_refused(words: str) -> None:
    with pytest.raises(SearchRefused):
        expression_of(words)


@given(words=st.text(max_size=40) | st.sampled_from(
    ['" OR text:*', "a NEAR(b c)", "NOT a", "channel:c", "a) OR (b", "^a", "a AND", "{text} : b", "-a", "a''b", "1+1"]
))  # fmt: skip
def test_property_no_query_is_syntax(words: str) -> None:
    try:
        expression = expression_of(words)
    except SearchRefused:
        return
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE texts USING fts5 (channel, text)")
    match = f"channel : c1 AND text : ({expression})"
    database.execute("INSERT INTO texts VALUES ('c2', 'a b c')")
    assert database.execute("SELECT rowid FROM texts WHERE texts MATCH ?", (match,)).fetchall() == []
    database.close()


def test_retention_removes_words(make_core: Callable[..., Any], tmp_path: Path) -> None:
    core = make_core(sealing=SealPolicy(bytes=1))
    for n in range(3):
        core.say(b'"word %d"' % n)
        core.settle()
    core.stop()  # its log seals segments, which the other one would do at the same time
    index = indexed(tmp_path / "data", search=True)
    asked = Search("lobby", expression_of("word"), 0, BEYOND)
    before = search(index.path, asked, 10)
    assert len(before) == 3
    index.prune(before[1][0] + 1)
    assert search(index.path, asked, 10) == before[2:]
    assert index.rows("SELECT rowid FROM texts") == [(before[2][0],)], "the copies are gone as well"
    index._tables.replace()()
    assert search(index.path, asked, 10) == []
    assert index.catch_up() > 0, "it is filled again"
    assert len(search(index.path, asked, 10)) == 3
    index.close()


def test_changing_the_setting_rebuilds_the_index(core: Any, tmp_path: Path) -> None:
    core.say(b'"word"')
    core.stop()
    asked = Search("lobby", expression_of("word"), 0, BEYOND)
    for on in (False, True, True, False, True):
        index = indexed(tmp_path / "data", search=on)
        tables = {name for (name,) in index.rows("SELECT name FROM sqlite_schema")}
        assert ("texts" in tables) == on
        if on:
            assert len(search(index.path, asked, 10)) == 1
        index.close()


def test_a_search_that_takes_long_is_stopped(
    core: Any, find: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2_000):
        core.say(b'"a word"')
    looks: list[float] = []

    def clock() -> float:  # a hundredth of a second passes between two looks at it
        looks.append(len(looks) / 100)
        return looks[-1]

    monkeypatch.setattr(word_index, "monotonic", clock)
    assert len(find("word", limit=3_000)) == 2_000
    monkeypatch.setattr(word_index, "STEPS", 10)
    looks.clear()
    with pytest.raises(SearchTooLong, match="took more than 1 s"):
        find("word", limit=3_000)
    assert looks[-1] - word_index.SEARCH_SECONDS == pytest.approx(0.01)
