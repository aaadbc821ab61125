"""Sets of messages for a comparison are continued, bounded, and released if memory is short."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import httpx
import pytest

from gateway.http import sync, sync_messages, sync_sets
from gateway.http.bodies import SHORT_BODY
from gateway.reconciliation import reading

EVERYTHING = b"\x61\x00\x00\x02\x00"  # the side that begins has nothing


@pytest.fixture
def http(make_local: Callable[..., Any]) -> Iterator[httpx.Client]:
    local = make_local()
    with httpx.Client(base_url=f"{local.url}/v1", timeout=30) as client:
        client.local = local  # type: ignore[attr-defined]
        yield client


def publish(http: httpx.Client, channel: str) -> bytes:
    """Publish a message; its id in the sets."""
    id = http.post(f"/channels/{channel}/messages", json=1).raise_for_status().json()["id"]
    return sha256(id.encode()).digest()


def told(http: httpx.Client, channels: str) -> set[bytes]:
    answer = http.post(f"/sync?channels={channels}", content=EVERYTHING).raise_for_status().content
    return {answer[at : at + 32] for at in range(5, len(answer), 32)}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[frozenset[str], int]]:
    """What is read from the log from now on: which channels, and after which sequence."""
    read: list[tuple[frozenset[str], int]] = []
    genuine = reading.read_items

    def counting(index: Any, segments: Any, channels: frozenset[str], after: int, until: int) -> Any:
        read.append((channels, after))
        return genuine(index, segments, channels, after, until)

    monkeypatch.setattr(sync_sets, "read_items", counting)
    return read


def test_a_set_is_continued_and_not_read_again(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch)
    first = publish(http, "a")
    assert told(http, "a") == {first}
    second, third = publish(http, "a"), publish(http, "b")
    assert told(http, "a") == {first, second}
    assert told(http, "a,b") == {first, second, third}, "the set grows by a channel"
    assert [(sorted(channels), after > 0) for channels, after in read] == [
        (["a"], False),
        (["a"], True),
        (["b"], False),
    ]


def test_after_a_restart_a_set_is_not_read_again(
    make_local: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_sets, "MAX_UNSAVED", 2)
    read = counted(monkeypatch)
    with httpx.Client(base_url=f"{make_local().url}/v1") as http:
        ids = {publish(http, "a"), publish(http, "a")}
        assert told(http, "a") == ids
    with httpx.Client(base_url=f"{make_local().url}/v1") as http:
        ids.add(publish(http, "a"))
        assert told(http, "a") == ids
    assert [after > 0 for _, after in read] == [False, True]


def test_a_small_set_is_not_saved(http: httpx.Client) -> None:
    publish(http, "a")
    told(http, "a")
    assert not (http.local.gateway.settings.data / "sync").exists()  # type: ignore[attr-defined]


def test_a_set_is_bounded(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_sets, "MAX_ITEMS", 1)
    publish(http, "a")
    assert len(told(http, "a")) == 1
    publish(http, "a")
    refused = http.post("/sync?channels=a", content=EVERYTHING)
    assert (refused.status_code, refused.json()["code"]) == (400, "request-refused")


def test_sets_are_released_if_memory_is_short(http: httpx.Client) -> None:
    budget = http.local.gateway.budget  # type: ignore[attr-defined]
    mine = publish(http, "a")
    assert told(http, "a") == {mine}
    before = budget.held
    assert before > 0
    limit = budget.limit
    budget.set_limit(1)
    budget.audit()
    budget.set_limit(limit)
    assert budget.held == 0
    assert told(http, "a") == {mine}
    assert budget.held == before


def test_a_long_line_is_not_read_on_the_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    genuine = sync_messages.parse_line

    def noting(line: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return genuine(line)

    monkeypatch.setattr(sync, "parse_line", noting)
    for size in (1, SHORT_BODY):
        http.post("/sync/import", content=b'"%b"' % (b"x" * size)).raise_for_status()
    assert len(set(threads)) == 2


def test_an_export_reads_and_charges_only_what_it_returns(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = http.local.gateway  # type: ignore[attr-defined]
    said = [http.post("/channels/a/messages", json="x" * SHORT_BODY).raise_for_status().json()["id"] for _ in range(8)]
    told(http, "a")  # until all of them are in the index
    read, charged, entry = list[int](), list[float](), gateway.index.entry

    def counting(seq: int) -> Any:
        read.append(seq)
        return entry(seq)

    monkeypatch.setattr(sync, "MAX_LINES", 3 * SHORT_BODY)
    monkeypatch.setattr(gateway.index, "entry", counting)
    monkeypatch.setattr(gateway, "charge", lambda _network, requests: charged.append(requests))
    asked = {"ids": [sha256(id.encode()).hexdigest() for id in said]}
    lines = http.post("/sync/export?channels=a", json=asked).raise_for_status().text.splitlines()
    assert [json.loads(line)["id"] for line in lines] == said[:3]
    assert len(read) == 3
    assert charged[0] == sync.COST
    assert 2 < sum(charged[1:]) < 4, "one for each part of that length but the last"
