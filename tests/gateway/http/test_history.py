"""History by time, sender and words is paged over HTTP without repetition or omission."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import httpx
import pytest

from gateway.core.message import Message
from gateway.http import history, searches
from gateway.http.problems import Problem
from gateway.http.time_range import TimeRange, parse_range
from gateway.storage import word_index

LOBBY = "/v1/channels/lobby/messages"
NOON = 1_795_435_200_000  # ms, 2026-11-23T12:00:00Z


def pages(client: httpx.Client, url: str | None) -> list[list[Any]]:
    found = []
    while url:
        told = client.get(url)
        assert told.status_code == 200, told.text
        found.append(told.json()["messages"])
        url = told.json()["next"]
        assert len(found) < 500
    return found


def contents(client: httpx.Client, query: str) -> list[Any]:
    return [message["content"] for page in pages(client, f"{LOBBY}?{query}") for message in page]


@pytest.fixture
def searching(make_local: Callable[..., Any]) -> Iterator[tuple[Any, httpx.Client]]:
    local = make_local(log={"search": True})
    with httpx.Client(base_url=local.url, timeout=20) as client:
        yield local, client


def say(local: Any, times: list[int], sender: str = "ada") -> None:
    """Publish one message for each of *times*, with that author's time and its place in the list as content."""
    done = threading.Event()

    def call() -> None:
        peer = local.gateway.peers.identity("rest", sender, sender)
        for n, at in enumerate(times):
            local.gateway.bus.publish(Message("lobby", peer, "rest", b"%d" % n, timestamp=at))
        local.gateway.log.when_synced(local.gateway.log.next_seq - 1, done.set)

    local.call(call)
    assert done.wait(20)


@pytest.mark.slow
def test_pages_by_time_are_in_its_order_and_complete(searching: tuple[Any, httpx.Client]) -> None:
    local, client = searching
    times = [NOON + 1000 * (n * 7 % 50) for n in range(100)]  # every time twice, in no order
    say(local, times)
    wanted = sorted(range(100), key=lambda n: (times[n], n))
    for limit in (1, 7, 100, 256):
        assert contents(client, f"from={NOON}&limit={limit}") == wanted
        assert contents(client, f"to={NOON + 10**9}&limit={limit}&order=desc") == wanted[::-1]
    middle = [n for n in wanted if NOON + 10_000 <= times[n] < NOON + 20_000]
    assert contents(client, "from=2026-11-23T12:00:10Z&to=2026-11-23T13:00:20%2B01:00&limit=3") == middle
    assert contents(client, f"from={NOON + 20_000}&to={NOON + 10_000}") == []
    (page, *_) = pages(client, f"{LOBBY}?from={NOON}&limit=2")
    assert [message["timestamp"] for message in page] == [NOON, NOON]


def test_messages_published_while_pages_are_read_repeat_and_skip_nothing(searching: tuple[Any, httpx.Client]) -> None:
    local, client = searching
    say(local, [NOON + n for n in range(40)])
    seen: list[int] = []
    url = f"{LOBBY}?from={NOON}&limit=9"
    while url:
        page = client.get(url).json()
        seen += [message["sequence"] for message in page["messages"]]
        if len(seen) < 90:
            say(local, [NOON + 20, NOON + 1_000 + len(seen)])
        url = page["next"]
    first = [message["sequence"] for page in pages(client, f"{LOBBY}?before={min(seen) + 40}") for message in page]
    assert len(seen) == len(set(seen))
    assert set(first) <= set(seen)


def test_since_counts_from_now(searching: tuple[Any, httpx.Client]) -> None:
    _, client = searching
    client.post(LOBBY, content="1").raise_for_status()
    assert contents(client, "since=10m") == [1]
    assert contents(client, "since=0s") == []


def test_a_sender_in_a_range_of_time(searching: tuple[Any, httpx.Client], monkeypatch: pytest.MonkeyPatch) -> None:
    local, client = searching
    monkeypatch.setattr(history, "LOOKED_AT", 8)
    monkeypatch.setattr(history, "MAX_TURNS", 2)
    say(local, [NOON + n for n in range(60)], "bob")
    say(local, [NOON + 50, NOON + 30], "ada")
    (number,) = {message["sender"]["peer"] for page in pages(client, LOBBY) for message in page
                 if message["sender"]["name"] == "ada"}  # fmt: skip
    found = pages(client, f"{LOBBY}?from={NOON}&sender={number}")
    assert [message["content"] for page in found for message in page] == [1, 0]
    assert len(found) > 2, "a page ends early instead of searching for long"


def test_word_search_combines_with_all_other_filters(searching: tuple[Any, httpx.Client]) -> None:
    local, client = searching
    for n in range(30):
        client.post(LOBBY, json={"n": n, "text": f"the {'even' if n % 2 == 0 else 'odd'} number"}).raise_for_status()
    client.post("/v1/channels/other/messages", json="even").raise_for_status()
    while local.gateway.index.level < local.gateway.log.synced_seq:
        threading.Event().wait(0.01)
    even = [{"n": n, "text": "the even number"} for n in range(0, 30, 2)]
    for limit in (1, 4, 15, 100):
        assert contents(client, f"text=even&limit={limit}") == even
        assert contents(client, f"text=even+the&order=desc&limit={limit}") == even[::-1]
    assert contents(client, "text=%22even+number%22&since=1h") == even
    assert contents(client, "text=even&to=0") == []
    assert contents(client, "text=even&sender=99") == []
    (page, *_) = pages(client, f"{LOBBY}?text=odd&limit=2")
    assert len(contents(client, f"text=odd&after={page[0]['sequence']}")) == 14


REFUSED = [
    ("since=ten", 422, "invalid-parameter"), ("since=10", 422, "invalid-parameter"),
    ("since=1h&from=0", 422, "invalid-parameter"), ("from=yesterday", 422, "invalid-parameter"),
    ("from=2026-11-23", 422, "invalid-parameter"), ("from=2026-11-23T10:00:00", 422, "invalid-parameter"),
    ("to=2026-13-23T10:00:00Z", 422, "invalid-parameter"), ("from=0&after=3", 422, "invalid-parameter"),
    ("from=0&cursor=x", 422, "invalid-parameter"), ("from=0&cursor=1.99999999999999999999", 422, "invalid-parameter"),
    ("text=", 422, "invalid-query"), ("text=%00", 422, "invalid-query"), ("text=" + "x" * 999, 422, "invalid-query"),
]  # fmt: skip


def test_invalid_searches_are_refused(searching: tuple[Any, httpx.Client]) -> None:
    for query, status, code in REFUSED:
        told = searching[1].get(f"{LOBBY}?{query}")
        assert (told.status_code, told.json()["code"]) == (status, code), query


def test_a_search_holds_up_other_searches_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "MAX_WAITING", 1)
    _, client = request.getfixturevalue("searching")
    begun, end, search = threading.Event(), threading.Event(), word_index.search

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert end.wait(20)
        return search(*arguments)

    monkeypatch.setattr(word_index, "search", slow)
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(client.get, f"{LOBBY}?text=word")]
        assert begun.wait(20)
        asked += [pool.submit(client.get, f"{LOBBY}?text=word") for _ in range(2)]
        refused = next(as_completed(asked)).result()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.get(LOBBY).status_code == 200
        assert client.post(LOBBY, json=1).status_code == 201
        end.set()
        assert sorted(each.result().status_code for each in asked) == [200, 200, 429]


def test_word_search_is_disabled_by_default(local: Any) -> None:
    told = httpx.get(f"{local.url}{LOBBY}?text=word")
    assert (told.status_code, told.json()["code"]) == (501, "search-disabled")


@pytest.mark.parametrize(("text", "wanted"), [
    ("2026-11-23T12:00:00Z", NOON), ("2026-11-23t13:00:00.5+01:00", NOON + 500), ("2026-11-23 12:00:00z", NOON),
    ("2026-11-23T13:00:00 01:00", NOON), ("0", 0), ("-5", -5), (str(NOON), NOON),
])  # fmt: skip
def test_times_are_parsed_in_every_form(text: str, wanted: int) -> None:
    assert parse_range(None, text, None, 0) == TimeRange(wanted, None)
    assert parse_range(None, None, text, 0) == TimeRange(None, wanted)


def test_durations_are_parsed_in_every_unit() -> None:
    for text, wanted in [("90s", 90), ("10m", 600), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)]:
        assert parse_range(text, None, None, NOON).since == NOON - wanted * 1000
    with pytest.raises(Problem):
        parse_range("1y", None, None, NOON)
