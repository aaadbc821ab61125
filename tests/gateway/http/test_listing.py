"""Long lists read only what they show, and take short turns of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.authorization import KeyFile
from gateway.core.message import Peer
from gateway.core.names import SortedNames
from gateway.http import listing
from gateway.storage.segments import Segments

PATIENCE = 60.0
BRACKETS = b"[" + b"[]," * 300_000 + b"[]]"  # nearly 1 MiB; it takes long to make a value of it


@pytest.fixture
def http(local: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=local.url, timeout=PATIENCE) as client:
        yield client


@pytest.mark.slow
def test_a_list_of_channels_reads_no_message(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [http.post(f"/v1/channels/{name}/messages", content=BRACKETS).json() for name in "abc"]
    number = http.get("/v1/channels/a/messages").json()["messages"][0]["sender"]["peer"]
    read: list[int] = []
    monkeypatch.setattr(Segments, "read", lambda _self, seq, _offset: read.append(seq))
    rows = http.get("/v1/channels").json()["channels"]
    assert [row["sequence"] for row in rows] == [each["sequence"] for each in said]
    assert http.get("/v1/channels/a").json()["sequence"] == said[0]["sequence"]
    assert not read
    http.get(f"/v1/peers/{number}")
    assert len(read) <= 1


def pages(http: httpx.Client, path: str) -> Iterator[list[str]]:
    following: str | None = path
    while following is not None:
        page = http.get(following).json()
        following = page["next"]
        yield [row["name"] for row in page["channels"]]


def test_a_caller_that_may_see_few_channels_gets_them_in_short_pages(
    tmp_path: Path, make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "BATCH", 4)
    monkeypatch.setattr(listing, "MAX_SCANNED", 8)
    key = KeyFile(tmp_path / "data" / "keys" / "api-keys.json").add("k", ("subscribe:b*",))
    local = make_local(channels={"names": [f"{letter}{number}" for letter in "abc" for number in range(20)]})
    with httpx.Client(base_url=local.url, timeout=PATIENCE, headers={"Authorization": f"Bearer {key}"}) as http:
        shown = list(pages(http, "/v1/channels?limit=5"))
        assert [name for page in shown for name in page] == sorted(f"b{number}" for number in range(20))
        assert all(len(page) <= 5 for page in shown)
        assert [] in shown, "there was a turn in which nothing was found"


def test_a_filtered_list_is_complete_among_many_channels(
    make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "BATCH", 4)
    monkeypatch.setattr(listing, "MAX_SCANNED", 8)
    local = make_local(channels={"names": [f"{letter}{number}" for letter in "abc" for number in range(20)] + ["ẞ"]})
    with httpx.Client(base_url=local.url, timeout=PATIENCE) as http:

        def names(path: str) -> list[str]:
            return [name for page in pages(http, path) for name in page]

        assert names("/v1/channels?contains=B1&limit=3") == ["b1", *(f"b{number}" for number in range(10, 20))]
        assert names("/v1/channels?contains=SS") == ["ẞ"]
        assert names("/v1/channels?contains=d") == []
        with http.stream("GET", "/v1/channels/c3/events") as events:
            lines = events.iter_lines()  # kept, because the stream ends with it
            next(lines)
            assert names("/v1/channels?listened=true") == ["c3"]
            assert names("/v1/channels?listened=true&contains=b") == []


@pytest.mark.parametrize("count", [0, 1, listing.BATCH - 1, listing.BATCH, listing.BATCH + 1, 900])
def test_a_list_of_many_peers_is_written_in_parts(count: int, local: Any, http: httpx.Client) -> None:
    guests = [Peer(number, "toy", f"né {number}") for number in range(1, count + 1)]
    for guest in guests:
        local.gateway.bus.presence.announce_present("lobby", guest, 1 << 60)
    shown = http.get("/v1/channels/lobby/peers").json()["peers"]
    assert [(row["number"], row["identity"]) for row in shown] == [(guest.number, guest.identity) for guest in guests]


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=2))), st.text(max_size=2), st.integers(0, 5))
def test_sorted_names_are_a_sorted_set(moves: list[tuple[bool, str]], after: str, limit: int) -> None:
    names, expected = SortedNames(), set[str]()
    for comes, name in moves:
        (names.add if comes else names.discard)(name)
        (expected.add if comes else expected.discard)(name)
        assert list(names) == sorted(expected)
    assert names.after(after, limit) == sorted(name for name in expected if name > after)[:limit]
    assert (after in names) == (after in expected)
    assert len(names) == len(expected)
