"""Publishing lines, and publishing each once: `POST` of NDJSON, and idempotency keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.access.authorization import KeyFile
from gateway.core.errors import Unavailable
from gateway.core.message import Message
from gateway.http import bulk, media
from gateway.http.bulk import LineSplitter
from gateway.http.publish import Publisher
from tests.gateway.http.rest_requests import LOBBY, NDJSON, PATIENCE, BulkConnection, lines, problem, say

NUMBERS = count()


# Lines


def test_lines_are_answered_in_order_refused_ones_too(http: httpx.Client) -> None:
    body = b'1\n{"broken\n\n[2]\r\n' + b'"' + b"x" * media.MAX_CONTENT + b'"\n' + b'"last"'
    results = lines(http.post(LOBBY, content=body, headers=NDJSON))
    assert [result.get("status", 201) for result in results] == [201, 400, 201, 413, 201]
    assert [result["line"] for result in results if "status" in result] == [2, 4]
    accepted = [result["sequence"] for result in results if "sequence" in result]
    assert [m["sequence"] for m in http.get(LOBBY).json()["messages"]] == accepted == sorted(accepted)
    assert [m["content"] for m in http.get(LOBBY).json()["messages"]] == [1, [2], "last"]


@settings(max_examples=200)
@given(text=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200)), limit=st.integers(1, 60))
def test_property_lines_are_the_same_however_they_are_cut(text: bytes, cuts: list[int], limit: int) -> None:
    cutter = LineSplitter(limit)
    places = sorted({0, *cuts, len(text)})
    found = [line for a, b in pairwise(places) for line in cutter.feed(text[a:b])] + cutter.end()
    whole = [line for line in text.split(b"\n") if line.strip(b" \t\r\n") or len(line) > limit]
    assert found == [line if len(line) <= limit else None for line in whole]


def test_lines_that_arrive_together_are_published_together(local: Any, http: httpx.Client) -> None:
    runs, submit = list[int](), local.gateway.bus.submit

    def note(run: Any, origins: Any) -> None:
        runs.append(len(run))
        submit(run, origins)

    local.gateway.bus.submit = note
    assert len(lines(http.post(LOBBY, content=b'{"n":1}\n' * 1_000, headers=NDJSON))) == sum(runs) == 1_000
    assert len(runs) < 100


LINES = [
    b"1",
    b'{"a": [1, 2]}',
    b"{",
    b"",
    b"\xff",
    b'{"inReplyTo":"none"}',
    b'"' + b"x" * 100_000 + b'"',
    b'"\\ud800"',
]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.lists(st.sampled_from(LINES), max_size=12), key=st.booleans(), fails=st.booleans())
def test_property_lines_published_together_equal_single_lines(
    local: Any, http: httpx.Client, body: list[bytes], key: bool, fails: bool
) -> None:
    """Also if one of the messages that are accepted cannot be logged."""
    bus, told = local.gateway.bus, list[Any]()
    submit = bus.submit

    def refuse(run: Any, origins: Any) -> None:
        if any(message.content == LINES[1] for message in run) and fails:
            raise Unavailable("no room")
        submit(run, origins)

    for alone in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bus, "submit", refuse)
            if alone:
                patch.setattr(Publisher, "takes_in_runs", lambda *_: False)
            more = {"Idempotency-Key": f"{alone} {next(NUMBERS)}"} if key else {}
            before = local.gateway.log.next_seq
            results = lines(http.post(LOBBY, content=b"\n".join(body), headers=NDJSON | more))
        said = [local.gateway.index.entry(seq) for seq in range(before, local.gateway.log.next_seq)]
        place = count(1)
        shown = [result if "status" in result else (next(place), result["undelivered"]) for result in results]
        told.append((shown, [(entry.content, entry.parent) for entry in said if isinstance(entry, Message)]))
    assert told[0] == told[1]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_lines_are_answered_while_more_are_written(make_process: Callable[..., Any], loop: str) -> None:
    with BulkConnection(make_process(loop=loop)) as wire:
        for n in range(5):
            wire.send(b"%d" % n)
            wire.send(b"\n")
            (result,) = wire.receive()
            assert result["sequence"]
        wire.end()
        assert wire.receive() == []


@pytest.mark.slow
def test_a_client_that_does_not_read_its_results_is_not_read_either(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_UNSENT", 1 << 16)
    total, size = 60, 1_000
    with BulkConnection(local, buffer=4096) as wire:
        sent: list[int] = []

        def write() -> None:
            for n in range(total):
                wire.send(b'"%d"\n' % n * size)
                sent.append(n)
            wire.end()

        writer = threading.Thread(target=write)
        writer.start()
        taken = -1
        while (now := local.gateway.metrics.counts["messages"]["rest",]) != taken:
            taken = now
            writer.join(0.5)
        assert taken < total * size, "it is slowed"
        results = 0
        while chunk := wire.receive():
            assert all("sequence" in result for result in chunk)
            results += len(chunk)
        writer.join(PATIENCE)
    assert results == total * size


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_gateway_that_stops_ends_its_answers(make_process: Callable[..., Any], loop: str) -> None:
    process = make_process(loop=loop)
    with BulkConnection(process) as wire:
        wire.send(b"1\n2")
        assert len(wire.receive()) == 1
        stopping = threading.Thread(target=process.stop)
        stopping.start()
        assert wire.receive() == [], "the line that was not finished is not taken"
        stopping.join(PATIENCE)
        assert not stopping.is_alive()


def test_a_line_that_was_cut_off_is_not_published(local: Any, http: httpx.Client) -> None:
    with BulkConnection(local) as wire:
        wire.send(b'"whole"\n1234')
        assert len(wire.receive()) == 1
    for _ in range(20):
        assert [m["content"] for m in http.get(LOBBY).json()["messages"]] == ["whole"]


# Idempotency


def test_a_key_publishes_once(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "k1"}
    first = say(http, "one", **key)
    assert say(http, "one", **key) == first
    assert "Idempotency-Key" in problem(http.post(LOBBY, content='"two"', headers=key), 422)
    assert say(http, "one", "/v1/channels/other/messages", **key)["sequence"] > first["sequence"]
    assert len(http.get(LOBBY).json()["messages"]) == 1
    problem(http.post(LOBBY, content="1", headers={"Idempotency-Key": "k" * 5_000}), 400)


def test_a_key_publishes_once_even_at_once(http: httpx.Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: say(http, "one", **{"Idempotency-Key": "k"})["id"], range(32)))
    assert len(set(answers)) == 1
    assert len(http.get(LOBBY).json()["messages"]) == 1


def test_a_key_publishes_each_line_once(http: httpx.Client) -> None:
    headers = NDJSON | {"Idempotency-Key": "k"}
    first = lines(http.post(LOBBY, content=b"1\n2\n", headers=headers))
    second = lines(http.post(LOBBY, content=b"1\n2\n3\n", headers=headers))
    assert second[:2] == first
    changed = lines(http.post(LOBBY, content=b"1\n5\n", headers=headers))
    assert (changed[0], changed[1]["status"]) == (first[0], 422)
    assert len(http.get(LOBBY).json()["messages"]) == 3


def test_a_key_is_known_after_a_restart(make_local: Callable[..., Any], client_of: Callable[..., httpx.Client]) -> None:
    key = {"Idempotency-Key": "k"}
    first = say(client_of(make_local()), "one", **key)
    again = client_of(make_local())
    assert say(again, "one", **key) == first
    problem(again.post(LOBBY, content="2", headers=key), 422)
    assert len(again.get(LOBBY).json()["messages"]) == 1


def test_keys_of_two_senders_are_two(
    make_local: Callable[..., Any], client_of: Callable[..., httpx.Client], tmp_path: Path
) -> None:
    keys = KeyFile(tmp_path / "data/keys/api-keys.json")
    secrets = [keys.add("ada"), keys.add("bob")]
    local = make_local()
    both = [say(client_of(local, secret), "one", **{"Idempotency-Key": "k"}) for secret in secrets]
    assert both[0]["id"] != both[1]["id"]
    senders = [m["sender"] for m in client_of(local, secrets[0]).get(LOBBY).json()["messages"]]
    assert [(sender["identity"], sender["name"]) for sender in senders] == [("ada", "ada"), ("bob", "bob")]
